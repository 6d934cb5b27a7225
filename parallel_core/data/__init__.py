"""Datasets read from real files, and a sampler that draws the same global batch under every layout."""
