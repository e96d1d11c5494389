"""A model provider for the measures: answers every request at once with a stream of as many events as the body says.

Run it with `python -m bench.model PORT`.
"""

import asyncio
import json
import sys
from typing import cast

import uvloop

_FIELDS = (b"HTTP/1.1 200 OK", b"Content-Type: text/event-stream", b"Transfer-Encoding: chunked", b"", b"")
HEAD = b"\r\n".join(_FIELDS)
LAST_EVENTS = (b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', b"data: [DONE]\n\n")
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


class Model(asyncio.Protocol):
    """One connection. The body's `events` says how many pieces of text come, `gap_ms` how far apart."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received = self._rest + data
        head_end = received.find(_HEAD_END)
        at = received[: max(head_end, 0)].lower().find(_LENGTH)
        begin = head_end + len(_HEAD_END)
        if head_end < 0 or len(received) < begin + int(received[at + len(_LENGTH) :].partition(b"\r\n")[0]):
            self._rest = received
            return
        self._rest = b""
        body = json.loads(received[begin:])
        self._answering = asyncio.get_running_loop().create_task(self._answer(body["events"], body["gap_ms"] / 1000))

    async def _answer(self, events: int, gap_seconds: float) -> None:
        assert self._transport is not None  # noqa: S101 - data comes after the connection
        self._transport.write(HEAD + _chunk(_event(0)))
        for number in range(1, events):
            if gap_seconds:
                await asyncio.sleep(gap_seconds)
            self._transport.write(_chunk(_event(number)))
        for event in LAST_EVENTS:
            self._transport.write(_chunk(event))
        self._transport.write(b"0\r\n\r\n")


def _event(number: int) -> bytes:
    """As a chat completion's piece is: an id, a model, a word."""
    return (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"fp",'
        b'"choices":[{"index":0,"delta":{"content":"word %d "},"logprobs":null,"finish_reason":null}]}\n\n' % number
    )


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", port)
    print(f"model ready: http://127.0.0.1:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
