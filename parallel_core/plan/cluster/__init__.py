"""Analytic planner for GPU clusters: memory and time of a way to split a training job, and the best way.

Formulas over columns of plans, NumPy only: `memory` (bytes of a rank at four instants), `step` (seconds), `search` (all
combinations, rejected ones with their reason), `verdict` (sentences and fixes), `accuracy` (against published tables).
Runs of the engine itself are predicted elsewhere (`plan.peak`, `simulate`): here no device was measured, and
efficiencies come from published runs (`data/efficiency.json`).
"""
