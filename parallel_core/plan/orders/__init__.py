"""Pipeline orders found by search: from each stage's times, its messages and a limit on what ranks keep.

`search` is the entry point; `problem` defines the input, `timing` computes the length of an order, `bound` a lower
bound.
"""
