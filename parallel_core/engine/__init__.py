"""The training engine: executes one rank's program of a schedule. Contains no code specific to a named schedule."""
