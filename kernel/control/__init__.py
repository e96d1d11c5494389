"""The control stream: agents and the number of shards, folded in memory by every process.

Tenants, keys and policies join it later: each with entries in `schemas.control`, a mapping in the state and an arm of
the fold.
"""
