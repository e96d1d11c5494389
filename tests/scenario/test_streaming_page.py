"""The page about live streams: what it shows is run as it stands there."""

import asyncio
import json
import shlex
from pathlib import Path
from string import Template

import httpx

from tests.conformance.harness.answers import accepted
from tests.conformance.harness.kernel import Kernel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"
READ_SECONDS_MAX = 30.0


async def test_the_command_of_the_page_shows_every_event_to_the_end(kernel: Kernel) -> None:
    codes = PAGE.read_text("utf-8").split("```")[1::2]
    assert [code.partition("\n")[0] for code in codes] == ["sh"]
    execution = await (await kernel.agent()).create()
    given = {"REBUNO_URL": kernel.url, "REBUNO_API_KEY": kernel.api_key, "ID": execution["id"]}
    program, unbuffered, address, flag, header = shlex.split(Template(codes[0].partition("\n")[2]).substitute(given))
    assert (program, unbuffered, flag) == ("curl", "-N", "-H")
    name, _, value = header.partition(": ")

    # As curl sends it.
    async with (
        asyncio.timeout(READ_SECONDS_MAX),
        httpx.AsyncClient(trust_env=False, timeout=READ_SECONDS_MAX) as client,
        client.stream("GET", address, headers={name: value}) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert await anext(lines) == ": keep-alive"
        accepted(await kernel.cancel(execution["id"]), 204)
        rest = [line async for line in lines]

    events = await kernel.events(execution["id"])
    data = [json.loads(line.removeprefix("data: ")) for line in rest if line.startswith("data: ")]
    assert data == [*events, {"status": "cancelled"}]
    assert "event: end" in rest
