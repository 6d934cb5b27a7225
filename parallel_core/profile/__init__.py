"""What a model's layers and a host's links cost, measured: `python -m parallel_core profile spec.json`.

`table` holds the numbers (no torch); `ranks` measures them in real ranks, `layers` and `links` being what it measures;
`measure` starts those ranks and collects the table.
"""
