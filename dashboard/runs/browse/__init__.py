"""The list of runs: searched, filtered, ordered and exported."""
