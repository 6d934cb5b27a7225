"""A run's page: its verdict, tiles, charts and tabs, and its report."""
