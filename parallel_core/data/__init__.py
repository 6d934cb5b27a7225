"""Corpora read from real files, and a sampler that gives the same global batch whatever the layout."""
