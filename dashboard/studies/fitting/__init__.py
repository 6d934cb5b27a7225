"""The fit study: the largest number of layers that fits."""
