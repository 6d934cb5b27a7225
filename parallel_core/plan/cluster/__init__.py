"""Analytic planner for GPU clusters: what a way of splitting takes in memory and time, and which one is best.

Formulas over columns of plans, NumPy only: `memory` (bytes of a rank at four instants), `step` (seconds), `search` (all
combinations, rejected ones with their reason), `why` (sentences and fixes), `accuracy` (against published tables).
Runs of this yard's own engine are predicted elsewhere (`plan.peak`, `simulate`): here nothing was measured on its own
devices, and efficiencies come from published runs (`data/efficiency.json`).
"""
