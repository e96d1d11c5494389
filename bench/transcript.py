"""What a long conversation takes in the log: every call sends all of it again."""

import random

import msgspec
import nats

from bench.connections import Connection
from bench.processes import Processes
from bench.ratios import Bar, Row, say
from bench.requests import Held, signed

STORED = "stored bytes of a conversation of {turns} turns / its transcript"
TURNS = 200
WORDS = 200
"""Of each message; two of them are a turn."""
TARGET = "model-of-the-measures"

_SYLLABLES = ("ka", "lo", "mi", "té", "run", "sta", "zu", "ber", "世", "é")


class Decision(msgspec.Struct, frozen=True):
    """What is read of the answer to a submission."""

    step_id: str


async def stored_row(processes: Processes, connection: Connection, held: Held) -> Row:
    """Hold a conversation and compare what the streams of the log grew by with its messages."""
    choose = random.Random(1)
    before = await _stored_bytes(processes)
    messages: list[dict[str, str]] = []
    sent_bytes = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": _said(choose)})
        args = msgspec.json.encode({"model": TARGET, "messages": messages, "stream": False})
        sent_bytes += len(args)
        step_id = await _submitted(connection, held, args)
        messages.append({"role": "assistant", "content": _said(choose)})
        await _completed(connection, held, step_id, messages[-1])
        if (turn + 1) % 50 == 0:
            say(f"{turn + 1} turns, {sent_bytes:,} bytes of arguments sent")
    transcript = len(msgspec.json.encode(messages))
    stored = await _stored_bytes(processes) - before
    return Row(STORED.format(turns=TURNS), [stored], [transcript], "bytes", Bar(3, 2, is_limit=True))


def _said(choose: random.Random) -> str:
    return " ".join("".join(choose.choices(_SYLLABLES, k=3)) for _ in range(WORDS))


async def _submitted(connection: Connection, held: Held, args: bytes) -> str:
    body = b'{"kind": "llm_call", "target": "%b", "args": %b}' % (TARGET.encode(), args)
    answer = await connection.exchange(signed(held, f"/v0/executions/{held.execution_id}/steps", body))
    return msgspec.json.decode(answer, type=Decision).step_id


async def _completed(connection: Connection, held: Held, step_id: str, message: dict[str, str]) -> None:
    answer = msgspec.json.encode({"choices": [{"message": message, "finish_reason": "stop"}]}).decode()
    body = msgspec.json.encode({"result": {"status": 200, "body": answer}})
    path = f"/v0/executions/{held.execution_id}/steps/{step_id}/complete"
    await connection.exchange(signed(held, path, body))


async def _stored_bytes(processes: Processes) -> int:
    """What all streams take on disk, as the broker counts it: payloads, headers and subjects."""
    client = await nats.connect(processes.servers.nats.url)
    try:
        return sum(stream.state.bytes for stream in await client.jetstream().streams_info())
    finally:
        await client.close()
