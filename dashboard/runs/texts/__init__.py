"""Uploaded texts that runs train on."""
