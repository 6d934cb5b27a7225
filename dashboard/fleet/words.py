"""What a person calls the devices of a host."""

WORDS = {"cpu": "CPU device", "cuda": "GPU"}
"""By kind, one of them."""
