"""Runs that generate text from another run's checkpoint."""
