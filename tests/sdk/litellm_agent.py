"""The program of an agent that asks by LiteLLM: through a gateway, or by the client that our library makes.

It runs in LiteLLM's environment, with our library beside it and nothing else of this repository.
"""

import json
import os
from pathlib import Path
from typing import Any

import litellm  # pyright: ignore[reportMissingImports] - it has an environment of its own

from stepwell import Agent, execution, http_client, tool

KEY = "sk-a-key-that-nobody-may-see"
SEEN = Path("seen.jsonl")
"""What each attempt was answered, one line each."""


@tool
async def confirm() -> None:
    """What a person is asked about, so that the handler is entered again."""


def see(answers: dict[str, Any]) -> None:
    with SEEN.open("a", encoding="utf-8") as seen:
        seen.write(json.dumps(answers) + "\n")


async def handle(question: str) -> str:
    options: dict[str, Any] = {
        "model": "openai/gpt-x",
        "api_key": KEY,
        "messages": [{"role": "user", "content": question}],
    }
    gateway_url = os.environ.get("GATEWAY_URL")
    if gateway_url:
        options["api_base"] = await execution().gateway_url(gateway_url)
    else:
        options["api_base"] = os.environ["PROVIDER_URL"]
        litellm.aclient_session = http_client()
    whole = await litellm.acompletion(**options)
    stream = await litellm.acompletion(**options, stream=True)
    pieces = [piece.model_dump() async for piece in stream]
    see({"whole": whole.model_dump(), "pieces": pieces})
    await confirm()
    return "".join(piece["choices"][0]["delta"]["content"] or "" for piece in pieces)


if __name__ == "__main__":
    Agent("asker", secret=os.environ["SECRET"], base_url=os.environ["KERNEL_URL"]).run(
        handle, host="127.0.0.1", port=int(os.environ["PORT"])
    )
