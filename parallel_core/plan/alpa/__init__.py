"""Alpa's two levels (Zheng et al. 2022): which layers go to which group of devices, and how each is split inside.

`costs` says what a layer takes under each way to split it, `intra` chooses the ways of one stage (section 4), `inter`
cuts the model into stages over submeshes (section 5), `plans` holds the result beside other partitions.
"""
