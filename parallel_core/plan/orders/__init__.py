"""Pipeline orders that are found, not handmade: from each stage's times, its messages and a limit on what ranks keep.

`search` is the way in; `problem` says what is asked, `timing` how long an order takes, `bound` how short any can be.
"""
