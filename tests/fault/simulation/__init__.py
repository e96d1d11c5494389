"""The whole system in one process, on memory adapters: virtual time, a seeded scheduler, and faults at any await.

Nothing here waits or touches the machine. The same seed gives the same run, step by step.
"""
