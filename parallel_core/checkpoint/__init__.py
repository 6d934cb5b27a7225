"""Checkpoints as folders: what is in one, whether it is complete, and which is the newest. Free of torch.

    <run>/step-00000012/manifest.json   every tensor by parameter name: type, full shape, and where its pieces lie
                        rank-0.bin      raw little-endian elements, as that rank wrote them
    <run>/.saving-...                   under way, or left behind by a process that was killed: never read
    <run>/.replaced-...                 the one before of the same step, until the new one has its name

A folder is complete or is no checkpoint: it gets its name by one rename, after every byte of it was flushed to disk.
Nothing in it is ever unpickled: the manifest is JSON, the rest are bare numbers whose sha256 stands in the manifest.
"""
