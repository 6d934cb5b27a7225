"""What was measured beforehand (profiles of models), what was predicted from it, and how accurate that was."""
