"""What the devices of a host are called on pages."""

WORDS = {"cpu": "CPU device", "cuda": "GPU"}
"""Kind of device -> its name, in the singular."""
