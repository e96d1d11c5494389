"""One seed, from the first process to the verdict."""

import asyncio
import gc
import logging
import random
import warnings
from collections.abc import Mapping

import msgspec
from msgspec import UnsetType

from kernel.domain.errors import KernelError
from kernel.ports import Batch, Watermark
from kernel.view.memory import MemoryView
from tests.fault.checker import check
from tests.fault.history import EventRead, ExecutionRead, History, StepRead
from tests.fault.simulation.agents import BEAT_SECONDS, Agent, Stopped, make_script
from tests.fault.simulation.clients import Client
from tests.fault.simulation.expiries import ended_attempts, expired_though_trying, short_silence
from tests.fault.simulation.faults import FAULTS_SECONDS, FaultPlan
from tests.fault.simulation.virtual import Process, Stuck, VirtualLoop, VirtualSecrets, VirtualTime, substituted
from tests.fault.simulation.world import SETTINGS, Journal, World
from workers.projecting.batch import fold_batch, inspect
from workers.projecting.memory import ShardMemory

SETTLE_SECONDS_MAX = 120.0
"""Virtual time in which everything has to end once the faults are over."""
ANSWER_SECONDS_MAX = SETTINGS.budget_seconds + 1.5
"""The budget, a look at the view or the log on the way out, and the network."""
COLLECT_SECONDS = 2 * SETTINGS.unreferenced_seconds
"""Virtual time after which a piece that no entry refers to is mostly gone."""
_LOOK_SECONDS = 0.25
_END_SECONDS_MAX = 60.0
_END_ROUNDS_MAX = 5
_READ_TRIES_MAX = 20

_LOGGERS = ("kernel", "workers")


class Unreadable(Exception):
    """What the kernel has to answer when no fault is left was not answered."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of one seed. Equal digests are equal runs, step by step."""

    seed: int
    findings: tuple[str, ...]
    digest: int
    steps: int
    virtual_seconds: float
    history: History
    faults: tuple[str, ...]
    lines: tuple[str, ...]
    """What the kernel logged as a warning or worse."""


def run_seed(seed: int) -> Outcome:
    """Play one seed. Nothing of it is left behind."""
    rng = random.Random(seed)
    loop = VirtualLoop(rng)
    clock = VirtualTime(loop)
    journal = Journal()
    scenario = _Scenario(loop, clock, rng)
    was_collecting = gc.isenabled()
    # A collection would end abandoned generators, and so run code of the dead, at a moment no seed decides.
    gc.disable()
    with substituted(clock, VirtualSecrets(rng)), short_silence(), _heard_by(journal):
        try:
            loop.run_until_complete(scenario.play())
        except (Stuck, Unreadable) as error:
            scenario.findings.append(f"the run came to no end: {error!r}")
        finally:
            steps, seconds, digest = loop.steps, loop.time(), loop.digest
            heard = journal.findings(is_excused=scenario.may_meet_a_later_view)
            heard += [f"a task failed: {error!r}" for error in loop.failures() if not isinstance(error, Stopped)]
            _end(loop, scenario.world)
    if was_collecting:
        gc.enable()
    return Outcome(
        seed=seed,
        findings=(*scenario.findings, *heard),
        digest=digest,
        steps=steps,
        virtual_seconds=seconds,
        history=scenario.world.history,
        faults=tuple(scenario.faults.played),
        lines=tuple(journal.lines),
    )


class _Scenario:
    """Agents, clients and faults over one world."""

    def __init__(self, loop: VirtualLoop, clock: VirtualTime, rng: random.Random) -> None:
        self.findings: list[str] = []
        self.world = World(loop, clock, rng)
        self._loop = loop
        self._rng = rng
        scripts = {f"execution-{number}.": make_script(rng) for number in range(rng.choice((1, 2, 2, 3)))}
        self._agent = Agent(self.world, scripts)
        self.faults = FaultPlan(self.world, self._agent, rng)
        self._clients = [
            Client(self.world, mark, has_key=rng.random() < 0.7, cancels=rng.random() < 0.2) for mark in scripts
        ]

    @property
    def may_meet_a_later_view(self) -> bool:
        """Whether an owner may find a view that is not its memory's before it is told that it owns it no more."""
        return self.faults.is_view_rewound or len(self.world.of_kind("projector")) > 1

    async def play(self) -> None:
        world, loop = self.world, self._loop
        await world.start()
        chosen = self.faults.chosen()
        client_process = loop.process("clients")
        clients = [loop.start(client_process, client.run()) for client in self._clients]
        if chosen:
            await asyncio.wait([asyncio.ensure_future(play()) for play in chosen], timeout=3 * FAULTS_SECONDS)
        else:
            await world.network.pause(2.0)
        self.faults.mend()
        is_settled = await self._settle(clients)
        if await _pieces(world):
            # What no entry refers to is removed meanwhile, and nothing else.
            await world.network.pause(COLLECT_SECONDS)
            self.findings += await _missing_pieces(world)
        reads = await self._read(client_process)
        self.findings += check(
            world.history,
            reads,
            is_settled=is_settled,
            is_view_whole=not self.faults.is_view_rewound,
            is_door_alone=len(world.of_kind("door")) == 1,
            is_delivered_once=not (self.faults.is_view_rewound and self.faults.are_copies_stored),
            answer_seconds_max=ANSWER_SECONDS_MAX if self.faults.is_prompt else None,
        )
        if not self.faults.are_calls_lost:
            self.findings += await self._expired_though_trying()
        # Copies of entries that were under way until now are in the log as well.
        if not (is_settled and await self._settle(clients)):
            self.findings.append("not everything ended in time")
            return
        self.findings += await _refold_differs(world)

    async def _settle(self, clients: list[asyncio.Task[None]]) -> bool:
        ends_at = self._loop.time() + SETTLE_SECONDS_MAX
        while self._loop.time() < ends_at:
            if all(client.done() for client in clients) and self.world.is_quiet and await self._is_over():
                return True
            await self.world.network.pause(_LOOK_SECONDS)
        return False

    async def _is_over(self) -> bool:
        """Whether every shard is level with its log and every execution has ended."""
        world = self.world
        for shard in range(SETTINGS.shards):
            found = world.view.shard(shard)
            head = (await world.log.state(shard)).last_seq
            if not found.is_true or found.watermark is None or found.watermark.seq != head:
                return False
            if not all(header.is_terminal for header in found.headers("default")):
                return False
        return True

    async def _expired_though_trying(self) -> list[str]:
        started_at_us = self.world.clock.true_ns() // 1000 - round(self._loop.time() * 1_000_000)
        ended = await ended_attempts(self.world.log, SETTINGS.shards, started_at_us=started_at_us)
        bounds = {"gap_seconds_max": 1.5 * BEAT_SECONDS, "lease_seconds": SETTINGS.lease_seconds}
        return list(expired_though_trying(self.world.history, ended, **bounds))

    # ------------------------------------------------------------ reading back

    async def _read(self, process: Process) -> list[ExecutionRead]:
        """Read all executions over the wire, as a client does when everything is quiet."""
        reader = Client(self.world, "", has_key=False, cancels=False)
        listed = await self._fetch(reader, "/v0/executions?limit=200")
        assert isinstance(listed, dict)
        return [await self._read_one(reader, execution) for execution in listed["executions"]]

    async def _read_one(self, reader: Client, execution: Mapping[str, object]) -> ExecutionRead:
        execution_id, status = str(execution["id"]), str(execution["status"])
        path = f"/v0/executions/{execution_id}"
        events = await self._fetch(reader, f"{path}/events?limit=200")
        steps = await self._fetch(reader, f"{path}/steps")
        assert isinstance(events, list)
        assert isinstance(steps, list)
        return ExecutionRead(
            execution_id=execution_id,
            status=status,
            events=tuple(EventRead(each["event_seq"], each["type"], each["payload"]) for each in events),
            steps=tuple(
                StepRead(
                    step_id=each["step_id"],
                    kind=each["kind"],
                    target=each["target"],
                    args_hash=each["args_hash"],
                    occurrence=each["occurrence"],
                    status=each["status"],
                    outcome=_outcome_text(each),
                )
                for each in steps
            ),
            text=msgspec.json.encode([execution, events, steps]).decode(),
        )

    async def _fetch(self, reader: Client, path: str) -> object:
        for _ in range(_READ_TRIES_MAX):
            answered = await reader.ask("get", "GET", path, execution_id="-")
            if answered.status == 200:
                return answered.body
            await self.world.network.pause(_LOOK_SECONDS)
        raise Unreadable(f"{path} could not be read when everything was over")


def _outcome_text(step: Mapping[str, object]) -> str:
    found = step["error"] if step["error"] is not None else step["result"]
    return "" if found is None else msgspec.json.encode(found).decode()


# ---------------------------------------------------------------- the view, and the pieces, against the log


async def _pieces(world: World) -> int:
    """Return how many pieces of bodies were ever put."""
    return sum([(await world.log.bodies_state(shard)).last_seq for shard in range(SETTINGS.shards)])


async def _missing_pieces(world: World) -> list[str]:
    """Whether every piece that some entry refers to is where it was put."""
    findings: list[str] = []
    for shard in range(SETTINGS.shards):
        for seq in range(1, (await world.log.state(shard)).last_seq + 1):
            message = await world.log.get(shard, seq)
            entry = None if message is None else inspect(message).entry
            bodies = () if entry is None or isinstance(entry.spilled, UnsetType) else entry.spilled.values()
            for piece in {piece for body in bodies for piece in body.pieces}:
                if await world.log.piece(shard, piece) is None:
                    findings.append(f"shard {shard}: entry {seq} refers to piece {piece}, which is gone")
    return findings


async def _refold_differs(world: World) -> list[str]:
    """Fold every shard from its first entry into an empty view, and compare."""
    findings: list[str] = []
    for shard in range(SETTINGS.shards):
        fresh = MemoryView(clock=lambda: world.clock.true_ns() // 1_000_000)
        try:
            await _refold(world, fresh, shard)
        except KernelError as error:
            findings.append(f"shard {shard} cannot be folded anew: {error!r}")
            continue
        found, expected = _contents(world.view, shard), _contents(fresh, shard)
        findings += [
            f"shard {shard}: {name} of the view differ from a fold of the log"
            for name, value in expected.items()
            if found[name] != value
        ]
    return findings


async def _refold(world: World, fresh: MemoryView, shard: int) -> None:
    ownership = await fresh.acquire(shard, owner="refold", ttl_ms=10**9, lease_ms=1000)
    assert ownership is not None
    state = await world.log.state(shard)
    mark = await fresh.wipe(ownership, created_at=state.created_at, lease_ms=1000)
    memory = ShardMemory(executions_max=4)
    messages = [await world.log.get(shard, seq) for seq in range(1, state.last_seq + 1)]
    waiting = [inspect(message) for message in messages if message is not None]
    while waiting:
        folded = await fold_batch(fresh, memory, waiting)
        last = waiting[folded.count - 1].message
        after = Watermark(created_at=mark.created_at, seq=last.seq, checksum=last.checksum)
        await fresh.apply(
            ownership,
            Batch(
                expected=mark,
                watermark=after,
                changes=folded.changes,
                answers=(),
                create_keys=folded.create_keys,
                parked=folded.parked,
                is_rebuilding=False,
            ),
        )
        memory.settle(change.after.execution_id for change in folded.changes)
        mark, waiting = after, waiting[folded.count :]


def _contents(view: MemoryView, shard: int) -> dict[str, object]:
    state = view.shard(shard)
    return {
        "records": {place: dict(fields) for place, fields in state.hashes.items()},
        "directory": dict(state.directory),
        "due work": {member: None if member.startswith("lease/") else at for member, at in state.due.items()},
        "leases": dict(state.leases),
        "create keys": dict(state.create_keys),
        "parked entries": dict(state.parked),
        "watermark": state.watermark,
    }


# ---------------------------------------------------------------- around a run


class _heard_by:  # noqa: N801 - used as a statement, like the context managers of contextlib
    """What the kernel logs goes to the journal and nowhere else."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._before: list[tuple[logging.Logger, bool, int]] = []

    def __enter__(self) -> None:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            self._before.append((logger, logger.propagate, logger.level))
            logger.addHandler(self._journal)
            logger.propagate = False
            logger.setLevel(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        for logger, propagate, level in self._before:
            logger.removeHandler(self._journal)
            logger.propagate = propagate
            logger.setLevel(level)


def _end(loop: VirtualLoop, world: World) -> None:
    """Cancel whatever still runs or lies dead, and let it clean up, so that nothing of it outlives the run."""
    for role in world.roles:
        world.bring_down(role)
    loop.let_everything_end()

    async def end_all() -> None:
        me = asyncio.current_task()
        for _ in range(_END_ROUNDS_MAX):
            left = [task for task in loop.tasks if task is not me and not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_END_SECONDS_MAX)

    with warnings.catch_warnings():
        # What a cancelled process was about to start is dropped with it.
        warnings.simplefilter("ignore", RuntimeWarning)
        loop.run_until_complete(end_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
