"""Checkpoints as folders: their content, whether one is complete, and which is the newest. Does not import torch.

    <run>/step-00000012/manifest.json   every tensor by parameter name: type, full shape, and where its pieces lie
                        rank-0.bin      raw little-endian elements, as that rank wrote them
    <run>/.saving-...                   being written, or left by a process that was killed: never read
    <run>/.replaced-...                 the previous one of the same step, until the new one has its name

A folder with the name of a checkpoint is complete: it gets the name by one rename, after all its bytes were flushed to
disk. Nothing in it is unpickled: the manifest is JSON, the rest are plain numbers whose SHA-256 is in the manifest.
"""
