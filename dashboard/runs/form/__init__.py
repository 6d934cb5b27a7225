"""The form New run, generated from RunSpec: its fields, groups and presets, and the panel that says what would fit."""
