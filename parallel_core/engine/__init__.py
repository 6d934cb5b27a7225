"""The engine: walks one rank's program of a schedule value, and trains. Knows no schedule by name."""
