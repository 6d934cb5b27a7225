"""A study as a printable report, and the questions that it answers."""
