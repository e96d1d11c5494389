"""A gateway: LLM calls become steps for agents that know nothing but their provider's base URL."""

from stepwell.gateway.app import Gateway
from stepwell.gateway.settings import Settings, Upstream

__all__ = ["Gateway", "Settings", "Upstream"]
