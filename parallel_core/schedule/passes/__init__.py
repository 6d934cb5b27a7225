"""Passes lower a compute-only schedule step by step. A pass adds operations; it never reorders compute."""
