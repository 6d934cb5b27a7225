"""What was measured beforehand (profiles of models), what was predicted by it, and how true that was."""
