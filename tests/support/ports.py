"""Free ports for what the tests start."""

from kernel.embedded import free_port

__all__ = ["free_port"]
