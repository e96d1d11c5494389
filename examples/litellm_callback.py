"""LiteLLM's proxy in front of the gateway: what says whose call it is goes on with the call.

LiteLLM does not hand on the headers that it is called with. This callback does, so that an agent may call its proxy as
it calls the gateway, with `execution().gateway_headers()`; litellm.yaml beside it names callback and gateway.
"""

from typing import Any

from litellm.exceptions import AuthenticationError  # pyright: ignore[reportMissingImports] - it has an environment of its own
from litellm.integrations.custom_logger import CustomLogger  # pyright: ignore[reportMissingImports] - it has an environment of its own

OURS = "rebuno-"
REPEATED = ("idempotency-key", "x-stainless-retry-count")
"""What says that a request is a repeat: without it a repeat is a call of its own."""


class HandOn(CustomLogger):
    """Carries a call's delegation to the gateway, and refuses calls that have none."""

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        """Called by LiteLLM for each request before it chooses a provider; the request that it returns is made."""
        sent = {name.lower(): value for name, value in data["proxy_server_request"]["headers"].items()}
        carried = {name: value for name, value in sent.items() if name.startswith(OURS) or name in REPEATED}
        if "rebuno-delegation" not in carried:
            raise AuthenticationError("no delegation came with this call", llm_provider="stepwell", model=data["model"])
        data["extra_headers"] = {**(data.get("extra_headers") or {}), **carried}
        return data


stepwell = HandOn()
