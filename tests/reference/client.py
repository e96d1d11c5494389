"""A release's own `Client` in a process of its own, and what it read, as the types the tests look at."""

import subprocess
import threading
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

SCRIPT = Path(__file__).with_name("agents") / "caller.py"
EXIT_SECONDS_MAX = 10.0
EVENTS_PAGE = 100

Value = TypeVar("Value")


class Execution(msgspec.Struct, frozen=True):
    """An execution as the client's model shows it."""

    id: str
    agent_id: str
    status: str
    input: Any
    output: Any
    failure_reason: str
    idempotency_key: str = ""

    @property
    def has_ended(self) -> bool:
        return self.status in {"completed", "failed", "cancelled"}


class Step(msgspec.Struct, frozen=True):
    """A step as the client's model shows it."""

    step_id: str
    execution_id: str
    kind: str
    target: str
    args_hash: str
    occurrence: int
    status: str
    idempotency: str
    args: Any
    result: Any
    error: Any


class Approval(msgspec.Struct, frozen=True):
    """An approval as the client's model shows it."""

    id: str
    step_id: str
    execution_id: str
    status: str
    message: str
    decided_by: str
    rationale: str


class Event(msgspec.Struct, frozen=True):
    """An event as the client's model shows it."""

    execution_id: str
    event_seq: int
    type: str
    payload: Any
    occurred_at: str


class Refusal(msgspec.Struct, frozen=True):
    """The exception that a call of the client raised."""

    type: str
    code: str
    status: int
    text: str


class Refused(Exception):
    """A call of the client raised; `refusal` says what."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(repr(refusal))
        self.refusal = refusal


class _Line(msgspec.Struct, frozen=True):
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: Refusal | None = None


class Caller:
    """One process that holds one `Client`. Calls come from any thread, one at a time."""

    def __init__(self, interpreter: Path, environment: dict[str, str], log: Path) -> None:
        self._one_at_a_time = threading.Lock()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(interpreter), str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self._log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.close()
        try:
            self._process.wait(EXIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def create(self, agent_id: str, given: object, **options: str) -> Execution:
        return self._call(Execution, "create", agent_id, given, **options)

    def get(self, execution_id: str) -> Execution:
        return self._call(Execution, "get", execution_id)

    def steps(self, execution_id: str, **options: str) -> list[Step]:
        return self._call(list[Step], "list_steps", execution_id, **options)

    def step(self, execution_id: str, step_id: str) -> Step:
        return self._call(Step, "get_step", execution_id, step_id)

    def cancel(self, execution_id: str) -> None:
        self._call(type(None), "cancel", execution_id)

    def approvals(self) -> list[Approval]:
        """Those that wait for a decision, of every execution."""
        return self._call(list[Approval], "list_approvals")

    def approval(self, approval_id: str) -> Approval:
        return self._call(Approval, "get_approval", approval_id)

    def deny(self, approval_id: str, *, decided_by: str, rationale: str) -> None:
        self._call(type(None), "deny_approval", approval_id, decided_by=decided_by, rationale=rationale)

    def events(self, execution_id: str) -> list[Event]:
        """Every event so far, page by page as a caller of this client has to do it."""
        events: list[Event] = []
        while True:
            after = events[-1].event_seq if events else 0
            page = self._call(list[Event], "events", execution_id, after_seq=after, limit=EVENTS_PAGE)
            events += page
            if len(page) < EVENTS_PAGE:
                return events

    def _call(self, returns: type[Value], method: str, *positional: object, **named: object) -> Value:
        request = msgspec.json.encode({"method": method, "positional": positional, "named": named})
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.write(request + b"\n")
            self._process.stdin.flush()
            # The client gives every request up after 35 seconds, so a line comes or the process has ended.
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client's process has ended:\n{self._log.read_text()[-4000:]}")
        answer = msgspec.json.decode(line, type=_Line)
        if answer.error is not None:
            raise Refused(answer.error)
        return msgspec.json.decode(answer.value, type=returns)
