"""Good clients and agents over HTTP: they repeat with its key what was not answered for good, and write it down."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.calls import REPLAYED, Call
from tests.conformance.harness.kernel import Kernel
from tests.fault.history import LOST, Answered, Asked, Delivered, Effect, History
from tests.support.scripted_agent import pass_time

UNSETTLED = frozenset({LOST, 503, 504})
"""Statuses after which the same request, with the same key, is sent again."""
PATIENCE_SECONDS = 150.0
PAUSE_SECONDS_MAX = 0.4


class Impatient(AssertionError):
    """A request was not answered for good in all that time."""


class Record:
    """The history of a run, and where its effects happen."""

    def __init__(self) -> None:
        self.history: History = []
        self.effects = 0
        self.answered = 0
        """Requests that were answered for good."""
        self.unsettled: dict[int, int] = {}
        """How often each of the other statuses was seen."""
        self._numbers = 0

    def asked(self, asked: Asked) -> Asked:
        self._numbers += 1
        asked = msgspec.structs.replace(asked, number=self._numbers, at=time.monotonic())
        self.history.append(asked)
        return asked

    def told(self, asked: Asked, response: httpx.Response | None) -> None:
        status, body, is_replayed = LOST, None, False
        if response is not None:
            status, is_replayed = response.status_code, response.headers.get(REPLAYED) == "true"
            body = response.json() if response.content else None
        self.history.append(
            Answered(number=asked.number, at=time.monotonic(), status=status, body=body, is_replayed=is_replayed)
        )
        if status in UNSETTLED:
            self.unsettled[status] = self.unsettled.get(status, 0) + 1
        else:
            self.answered += 1

    def ran(self, who: str, lease: Lease, step_id: str, *, is_at_most_once: bool) -> None:
        self.effects += 1
        self.history.append(
            Effect(
                at=time.monotonic(),
                who=who,
                execution_id=lease.execution_id,
                step_id=step_id,
                attempt=int(lease.attempt or 0),
                is_at_most_once=is_at_most_once,
            )
        )

    def delivered(self, who: str, lease: Lease) -> None:
        self.history.append(
            Delivered(
                at=time.monotonic(),
                who=who,
                execution_id=lease.execution_id,
                dispatch_id=str(lease.dispatch_id),
                attempt=int(lease.attempt or 0),
            )
        )


def blank(**known: Any) -> Asked:
    """A request that has no number and no time yet."""
    return Asked(number=0, at=0.0, **known)


class Caller:
    """Sends requests through any of the doors."""

    def __init__(self, doors: Sequence[Kernel], record: Record, choose: random.Random) -> None:
        self.record = record
        self._doors = doors
        self._choose = choose

    async def once(self, asked: Asked, call: Call) -> httpx.Response | None:
        """One try; None when it was lost."""
        asked = self.record.asked(asked)
        response = None
        try:
            response = await self._choose.choice(self._doors).send(call)
        except httpx.TransportError:
            # Whether it arrived is not known, and that is what the history says.
            response = None
        finally:
            self.record.told(asked, response)
        return response

    async def until_settled(self, asked: Asked, agent: Agent | None, call: Call) -> httpx.Response:
        """Repeat with the same key until it is answered for good. `agent` signs every try anew."""
        gives_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < gives_up_at:
            signed = call if agent is None else call.signed(agent.id, agent.secret, scheme=agent.scheme)
            response = await self.once(asked, signed)
            if response is not None and response.status_code not in UNSETTLED:
                return response
            await pass_time(self._choose.uniform(0.02, PAUSE_SECONDS_MAX))
        raise Impatient(f"{asked.action} of {asked.execution_id or asked.who} was not answered for good")

    async def at_once(self, asked: Asked, agent: Agent, call: Call, count: int) -> list[httpx.Response]:
        """The very same request several times at the same moment."""
        return await asyncio.gather(*(self.until_settled(asked, agent, call) for _ in range(count)))


def text_of(value: object) -> str:
    """The canonical JSON of the plain values that a run is made of."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
