"""What the page of a study or comparison says of its runs: charts, table and sentences."""
