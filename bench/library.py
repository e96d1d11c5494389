"""The agent of ten steps in a process of its own, with a library of choice, and how fast it is seen from outside."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median

import msgspec

from bench.agents import Created
from bench.connections import Connection, connect
from bench.processes import until
from bench.ratios import MeasureFailed
from bench.requests import SECRET, create, get_request, post_request, register
from kernel.embedded.ports import free_port, is_port_free

SCRIPT = Path(__file__).with_name("library_agents") / "ten_steps.py"
STEPS = 10
"""Of one execution, as the script makes them."""
FINISH_SECONDS_MAX = 60.0
"""For one execution among all that are under way."""
EVENTS_WAIT_SECONDS = 20
POLICY = """
default_action: allow
rules:
  - {id: a-person, priority: 1, when: {target: ask_a_person}, then: {decision: require_approval}}
"""


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent imports, and the Python that has it."""

    name: str
    module: str
    interpreter: Path
    environment: Mapping[str, str]


class Door(msgspec.Struct, frozen=True):
    """Where the kernel listens."""

    port: int
    api_key: str


class Finished(msgspec.Struct, frozen=True):
    """What the agent writes when a handler has made its steps."""

    number: int
    entry: int
    """How often the handler has been entered for this execution."""
    spent_ns: list[int]
    """Of each step."""
    cpu_ns: int
    """CPU time of the process until then."""


class OneByOne(msgspec.Struct, frozen=True, kw_only=True):
    """Executions one after the other."""

    steps_per_second: float
    step_milliseconds: float
    """p50 over the steps, as the handler sees them."""
    cpu_milliseconds: float
    """CPU time of the agent's process for a step."""


class EnteredAgain(msgspec.Struct, frozen=True):
    """p50 of a step, in a handler that is entered for the first time and in one that finds all its steps recorded."""

    fresh_milliseconds: float
    replayed_milliseconds: float


class _Event(msgspec.Struct, frozen=True):
    event_seq: int
    type: str


class _Approval(msgspec.Struct, frozen=True):
    id: str
    execution_id: str


_finished = msgspec.json.Decoder(Finished)
_events = msgspec.json.Decoder(list[_Event])
_approvals = msgspec.json.Decoder(list[_Approval])


class LibraryAgent:
    """Made by `serving`."""

    def __init__(
        self, library: Library, door: Door, process: asyncio.subprocess.Process, log: Path, connection: Connection
    ) -> None:
        self._library = library
        self._agent_id = _agent_id(library)
        self._door = door
        self._process = process
        self._log = log
        self._connection = connection
        self._numbers = count(1)
        self._finishing: dict[tuple[int, int], asyncio.Future[Finished]] = {}
        """By number and entry, of what is under way and of what was heard of."""
        self._cpu_ns = 0
        """As it was last heard of."""
        self._failure: MeasureFailed | None = None

    @classmethod
    @asynccontextmanager
    async def serving(cls, library: Library, door: Door, folder: Path) -> AsyncIterator["LibraryAgent"]:
        """Register the agent and serve it meanwhile."""
        port, log = free_port(), folder / f"{library.name}.log"
        connection = (await connect(door.port, 1))[0]
        await connection.exchange(register(door.api_key, _agent_id(library), f"http://127.0.0.1:{port}/webhook"))
        await connection.exchange(post_request(door.api_key, f"/v0/policies/{_agent_id(library)}", {"bundle": POLICY}))
        process = await _started(library, door, port, log)
        agent = cls(library, door, process, log, connection)
        reading = asyncio.create_task(agent._read())
        try:
            await until(lambda: reading.done() or not is_port_free(port), f"the agent with {library.name} to listen")
            yield agent
        finally:
            connection.close()
            if not reading.done():
                process.kill()
            await process.wait()
            await reading

    # ------------------------------------------------------------ measures

    async def one_by_one(self, executions: int) -> OneByOne:
        """Wait for the end of each before the next one is created. Some have to have been made before."""
        spent: list[float] = []
        cpu_ns, started_at = self._cpu_ns, time.perf_counter()
        for _ in range(executions):
            number = next(self._numbers)
            execution_id = await self._create(self._connection, {"number": number})
            spent += _milliseconds(await self._steps_made(number))
            await self._completed(execution_id, self._connection)
        seconds, steps = time.perf_counter() - started_at, executions * STEPS
        return OneByOne(
            steps_per_second=steps / seconds,
            step_milliseconds=median(spent),
            cpu_milliseconds=(self._cpu_ns - cpu_ns) / 1e6 / steps,
        )

    async def at_once(self, executions: int, *, in_flight: int) -> float:
        """Return the steps per second while so many executions are under way."""
        connections = await connect(self._door.port, in_flight)
        numbers = iter(range(executions))
        made: list[str] = []

        async def one_of_them(connection: Connection) -> None:
            for _ in numbers:
                number = next(self._numbers)
                made.append(await self._create(connection, {"number": number}))
                await self._steps_made(number)

        started_at = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for connection in connections:
                    group.create_task(one_of_them(connection))
        except ExceptionGroup as group_of_errors:
            # One says what happened; the others ended with it.
            raise group_of_errors.exceptions[0] from None
        seconds = time.perf_counter() - started_at
        for execution_id in made:
            await self._completed(execution_id, connections[0])
        for connection in connections:
            connection.close()
        return executions * STEPS / seconds

    async def entered_again(self, executions: int) -> EnteredAgain:
        """After its steps the handler asks a person, who agrees: it is entered again, and its steps are replayed."""
        fresh: list[float] = []
        replayed: list[float] = []
        for _ in range(executions):
            number = next(self._numbers)
            execution_id = await self._create(self._connection, {"number": number, "asks": True})
            fresh += _milliseconds(await self._steps_made(number))
            approval_id = await self._approval(execution_id)
            grant = f"/v0/approvals/{approval_id}/grant"
            await self._connection.exchange(post_request(self._door.api_key, grant, {"decided_by": "bench"}))
            replayed += _milliseconds(await self._steps_made(number, entry=2))
            await self._completed(execution_id, self._connection)
        return EnteredAgain(median(fresh), median(replayed))

    # ------------------------------------------------------------ one execution

    async def _create(self, connection: Connection, given: object) -> str:
        body = await connection.exchange(create(self._door.api_key, self._agent_id, given))
        return msgspec.json.decode(body, type=Created).id

    async def _steps_made(self, number: int, *, entry: int = 1) -> Finished:
        """Return when the handler has made its steps. Raises MeasureFailed where it does not, or its process ends."""
        try:
            async with asyncio.timeout(FINISH_SECONDS_MAX):
                return await self._of(number, entry)
        except TimeoutError as error:
            raise MeasureFailed(f"ten steps with {self._library.name} did not end:\n{self._said()}") from error

    async def _completed(self, execution_id: str, connection: Connection) -> None:
        """Return when the execution is completed."""
        seen, last = 0, ""
        while last != "execution.completed":
            query = f"after_seq={seen}&limit=1000&wait={EVENTS_WAIT_SECONDS}"
            asked = get_request(self._door.api_key, f"/v0/executions/{execution_id}/events?{query}")
            events = _events.decode(await connection.exchange(asked))
            if not events:
                raise MeasureFailed(
                    f"with {self._library.name} an execution came no further than {last}:\n{self._said()}"
                )
            seen, last = events[-1].event_seq, events[-1].type

    async def _approval(self, execution_id: str) -> str:
        async with asyncio.timeout(FINISH_SECONDS_MAX):
            while True:
                asked = get_request(self._door.api_key, "/v0/approvals?status=pending")
                answer = await self._connection.exchange(asked)
                for approval in _approvals.decode(answer):
                    if approval.execution_id == execution_id:
                        return approval.id

    # ------------------------------------------------------------ the process

    async def _read(self) -> None:
        """Hear what the agent writes, until it ends."""
        assert self._process.stdout is not None  # noqa: S101 - it was started with a pipe
        while line := await self._process.stdout.readline():
            finished = _finished.decode(line)
            self._cpu_ns = finished.cpu_ns
            heard = self._of(finished.number, finished.entry)
            if not heard.done():
                heard.set_result(finished)
        self._failure = MeasureFailed(f"the agent with {self._library.name} has ended:\n{self._said()}")
        for each in self._finishing.values():
            if not each.done():
                each.set_exception(self._failure)

    def _of(self, number: int, entry: int) -> "asyncio.Future[Finished]":
        if self._failure is not None:
            raise self._failure
        return self._finishing.setdefault((number, entry), asyncio.get_running_loop().create_future())

    def _said(self) -> str:
        return self._log.read_text()[-2000:]


async def _started(library: Library, door: Door, port: int, log: Path) -> asyncio.subprocess.Process:
    with log.open("ab") as errors:
        return await asyncio.create_subprocess_exec(
            str(library.interpreter),
            str(SCRIPT),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            # Only what the agent needs: no proxy and no setting of the surroundings.
            env={
                "PATH": os.environ["PATH"],
                "REBUNO_URL": f"http://127.0.0.1:{door.port}",
                "REBUNO_AGENT_SECRET": SECRET.decode(),
                "BENCH_LIBRARY": library.module,
                "BENCH_AGENT_ID": _agent_id(library),
                "BENCH_PORT": str(port),
                **library.environment,
            },
        )


def _agent_id(library: Library) -> str:
    return f"ten-steps-{library.name}"


def _milliseconds(finished: Finished) -> list[float]:
    return [spent / 1e6 for spent in finished.spent_ns]
