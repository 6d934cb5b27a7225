"""Which devices a run gets, when, and why it waits: pure functions of queued runs and hosts, without a database.

The controller places runs by them; pages and checks say by the same ones what would be placed where.
"""
