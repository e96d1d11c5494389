"""What the outside world saw of a run under faults: every request, what it was answered, every effect, in order.

Written by agents and clients alone, from what they sent and were told; nothing in it is read from the kernel's inside.
"""

from typing import Literal

import msgspec

LOST = 0
"""The status of a request that nobody answered: the connection broke or the waiting ended."""

Action = Literal[
    "create", "cancel", "get", "events", "submit", "complete_step", "fail_step", "heartbeat", "complete", "fail"
]


class Settled(msgspec.Struct, frozen=True):
    """The outcome of one step that travels with a request; `outcome` is its JSON text."""

    step_id: str
    outcome: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request. Requests that repeat one another share `key`, the Idempotency-Key (empty: none).

    `marks` are texts that nothing but this request, or a repeat of it, brings into the record. `settled` are the
    outcomes it carries: that of its own step, or those of `settle`. `attempt` is 0 for a client.
    """

    number: int
    at: float
    who: str
    action: Action
    execution_id: str = ""
    dispatch_id: str = ""
    attempt: int = 0
    step_id: str = ""
    target: str = ""
    args: str = ""
    key: str = ""
    marks: tuple[str, ...] = ()
    settled: tuple[Settled, ...] = ()


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the request of that number. `body` is the decoded JSON, None where there is none."""

    number: int
    at: float
    status: int
    body: object = None
    is_replayed: bool = False


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a step ran in the outside world."""

    at: float
    who: str
    execution_id: str
    step_id: str
    attempt: int
    is_at_most_once: bool


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook reached the agent."""

    at: float
    who: str
    execution_id: str
    dispatch_id: str
    attempt: int


Line = Asked | Answered | Effect | Delivered
History = list[Line]
"""In the order in which it happened: a request whose line follows an answer's was sent after that answer came."""


class EventRead(msgspec.Struct, frozen=True):
    """One event as it is read back; `payload` is what the wire has."""

    event_seq: int
    type: str
    payload: dict[str, object]


class StepRead(msgspec.Struct, frozen=True):
    """One step as it is read back; `outcome` is the JSON text of result or error, empty where there is none."""

    step_id: str
    kind: str
    target: str
    args_hash: str
    occurrence: int
    status: str
    outcome: str


class ExecutionRead(msgspec.Struct, frozen=True):
    """One execution at the end of a run, read back over the wire. `text` is all that was read, for marks."""

    execution_id: str
    status: str
    events: tuple[EventRead, ...]
    steps: tuple[StepRead, ...]
    text: str
