"""Queued runs: what each asks for, where it can be placed, whose turn it is, and what it waits for."""
