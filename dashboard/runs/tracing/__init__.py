"""Traced steps of runs: which there are, what is kept of them, and what a change of them would bring."""
