"""The log: adapters of the ports Log, ControlLog and Wakes, on NATS JetStream and in memory.

Nothing here decides anything about executions; it moves entries, and says exactly what became of each publish.
"""
