"""Writes down what an agent process asks and is told, in the words of the fault suite's histories.

Installed from outside, around methods of the library. A line is written before a request leaves and one after its
answer came, so a process that is killed in between leaves the first alone.
"""

import itertools
import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from stepwell.agent import Agent
from stepwell.exchange import Answer, Call, Exchange
from stepwell.kernel import LeasedCall
from stepwell.types import Webhook
from tests.fault.caller import text_of
from tests.fault.history import LOST, Action, Answered, Asked, Delivered, Line, Settled
from tests.sdk.effects import append, read_lines

NUMBERS_PER_PROCESS = 1_000_000

_ACTIONS: tuple[tuple[str, str, Action], ...] = (
    ("GET", r"/v0/executions/([^/]+)", "get"),
    ("POST", r"/v0/executions/([^/]+)/steps", "submit"),
    ("POST", r"/v0/executions/([^/]+)/steps/([^/]+)/complete", "complete_step"),
    ("POST", r"/v0/executions/([^/]+)/steps/([^/]+)/fail", "fail_step"),
    ("POST", r"/v0/executions/([^/]+)/heartbeat", "heartbeat"),
    ("POST", r"/v0/executions/([^/]+)/complete", "complete"),
    ("POST", r"/v0/executions/([^/]+)/fail", "fail"),
)
_FRESH = re.compile(r'"[0-9a-f]{16}"')
"""A fresh word that a body made: nothing but the requests that carry it may bring it into the record."""


class Noted(msgspec.Struct, frozen=True):
    """A line of a history in a file."""

    kind: str
    line: msgspec.Raw


class Chronicle:
    """Of one process of an agent, the `number`-th of the test."""

    def __init__(self, path: Path, number: int) -> None:
        self._path = path
        self._who = who(os.getpid())
        self._numbers = itertools.count(number * NUMBERS_PER_PROCESS)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Write down everything from here on."""
        send, take = Exchange._try, Agent.take

        async def noting_send(exchange: Exchange, call: Call) -> Answer:
            number = next(self._numbers)
            asked = self._asked(number, call)
            if asked is None:
                return await send(exchange, call)
            self._note(asked)
            try:
                answer = await send(exchange, call)
            except (aiohttp.ClientError, TimeoutError):
                self._note(Answered(number=number, at=time.monotonic(), status=LOST))
                raise
            self._note(_answered(number, answer))
            return answer

        async def noting_take(agent: Agent, webhook: Webhook) -> bool:
            self._note(
                Delivered(
                    at=time.monotonic(),
                    who=self._who,
                    execution_id=webhook.execution_id,
                    dispatch_id=webhook.dispatch_id,
                    attempt=webhook.dispatch_attempt,
                )
            )
            return await take(agent, webhook)

        patch.setattr(Exchange, "_try", noting_send)
        patch.setattr(Agent, "take", noting_take)

    def _note(self, line: Line) -> None:
        append(self._path, {"kind": type(line).__name__, "line": line})

    def _asked(self, number: int, call: Call) -> Asked | None:
        """Return the request as a history has it; None for one that no history speaks of."""
        action, found = _recognised(call)
        if found is None:
            return None
        body = json.loads(call.body) if call.body else {}
        step_id = found[2] if found.re.groups > 1 else ""
        lease = call.lease if isinstance(call, LeasedCall) else None
        return Asked(
            number=number,
            at=time.monotonic(),
            who=self._who,
            action=action,
            execution_id=found[1],
            dispatch_id=lease.dispatch_id if lease else "",
            attempt=lease.attempt if lease else 0,
            step_id=step_id,
            target=body.get("target", ""),
            args=text_of(body["args"]) if action == "submit" else "",
            key=call.key,
            marks=tuple(sorted(set(_FRESH.findall(call.body.decode())))),
            settled=tuple(_settled(step_id, body)),
        )


def who(process: int) -> str:
    """Return how a history names a process of an agent."""
    return f"process {process}"


def _recognised(call: Call) -> tuple[Action, re.Match[str] | None]:
    for method, pattern, action in _ACTIONS:
        found = re.fullmatch(pattern, call.path) if call.method == method else None
        if found is not None:
            return action, found
    return "get", None


def read_history(path: Path) -> list[Line]:
    """Return what all processes have written, in the order in which it happened."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in (Asked, Answered, Delivered)}
    return [msgspec.json.decode(each.line, type=kinds[each.kind]) for each in read_lines(path, Noted)]


def _settled(step_id: str, body: dict[str, Any]) -> Iterable[Settled]:
    own = [body | {"step_id": step_id}] if step_id else []
    for item in [*body.get("settle", ()), *own]:
        yield Settled(item["step_id"], text_of(item["result"] if "result" in item else item["error"]))


def _answered(number: int, answer: Answer) -> Answered:
    return Answered(
        number=number,
        at=time.monotonic(),
        status=answer.status,
        body=json.loads(answer.body) if answer.body else None,
        is_replayed=answer.headers.get("Idempotent-Replayed") == "true",
    )
