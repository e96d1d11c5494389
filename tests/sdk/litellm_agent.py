"""The program of an agent that asks by LiteLLM: through a gateway, and by the client that our library makes.

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


def see(answers: list[Any]) -> None:
    with SEEN.open("a", encoding="utf-8") as seen:
        seen.write(json.dumps(answers) + "\n")


async def handle(question: str) -> str:
    """Ask for a whole answer and for a stream, first through the gateway, then by the library's client."""
    by_gateway = await asked(question, await execution().gateway_url(os.environ["GATEWAY_URL"]))
    litellm.aclient_session = http_client()
    by_client = await asked(question, os.environ["PROVIDER_URL"])
    see([*by_gateway, *by_client])
    await confirm()
    return "".join(piece["choices"][0]["delta"]["content"] or "" for piece in by_client[1])


async def asked(question: str, base_url: str) -> list[Any]:
    options: dict[str, Any] = {
        "model": "openai/gpt-x",
        "api_key": KEY,
        "api_base": base_url,
        "messages": [{"role": "user", "content": question}],
    }
    whole = await litellm.acompletion(**options)
    stream = await litellm.acompletion(**options, stream=True)
    return [whole.model_dump(), [piece.model_dump() async for piece in stream]]


if __name__ == "__main__":
    Agent("asker", secret=os.environ["SECRET"], base_url=os.environ["KERNEL_URL"]).run(
        handle, host="127.0.0.1", port=int(os.environ["PORT"])
    )
