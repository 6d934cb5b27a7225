"""Alpa's two levels (Zheng et al. 2022): which layers go to which group of devices, and how each layer is split there.

`costs` prices each layer under every way to split it, `intra` chooses one way for each layer of a stage (section 4),
`inter` cuts the model into stages over submeshes (section 5), `plans` compares the result with other partitions.
"""
