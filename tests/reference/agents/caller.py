"""The client's own `Client`, called from outside: one JSON line in names a method, one JSON line out has its result.

Results pass through the client's models, so an answer that they would refuse is seen as a failure.
"""
# The client is installed in the environment this runs in, not in the one that checks types.
# pyright: reportMissingImports=false

import asyncio
import json
import sys

from pydantic import BaseModel
from rebuno import Client, RebunoError


def plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


async def answer(client: Client, line: str) -> dict[str, object]:
    request = json.loads(line)
    method = getattr(client, request["method"])
    try:
        return {"value": plain(await method(*request["positional"], **request["named"]))}
    except RebunoError as error:
        code, status = getattr(error, "code", ""), getattr(error, "status_code", 0)
        return {"error": {"type": type(error).__name__, "code": code, "status": status, "text": str(error)}}


async def main() -> None:
    async with Client() as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(json.dumps(await answer(client, line)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
