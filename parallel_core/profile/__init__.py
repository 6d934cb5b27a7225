"""Measures the cost of a model's layers and of a host's links: `python -m parallel_core profile spec.json`.

`measure` starts ranks and collects the results; `ranks` measures within them, by `layers` and `links`; `table` holds
the results (no torch).
"""
