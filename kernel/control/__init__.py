"""The control stream: tenants, keys, agents, policies and the number of shards, folded in memory by every process."""
