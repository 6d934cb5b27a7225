"""The yard's webhook: a small JSON is posted to one URL when a run or a study ends."""
