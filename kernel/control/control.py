"""The control stream followed in memory: level with its head within the last second, or known not to be.

Whoever decides by it asks `is_level` or awaits `level` first: a revoked key or an old rule must not be honoured.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from kernel.control.agents import Agent, Agents
from kernel.control.keys import Keys
from kernel.control.policies import Policies, Policy
from kernel.control.sealing import Sealer
from kernel.control.state import (
    Accepted,
    ControlAnswer,
    ControlState,
    TenantRecord,
    fold_page,
    read_control_entry,
)
from kernel.domain.errors import (
    Conflict,
    InvariantBroken,
    LogUnavailable,
    Misconfigured,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from kernel.ports import ControlLog, ControlMessage
from schemas.control import (
    AgentDeleted,
    AgentDescribed,
    AgentPut,
    AnyControlEntry,
    KeyCreated,
    KeyRevoked,
    PolicySet,
    ShardsSet,
    encode_control,
)
from schemas.ids import new_uuid7

ENTRY_BYTES_MAX = 1024 * 1024
"""Of one control entry: every process keeps what the entries say in memory."""
SUBMISSIONS_MAX = 256
"""Changes that wait for their answer in one process at once."""
ANSWERS_MAX = 16 * SUBMISSIONS_MAX
"""Answers remembered by entry id, the latest ones."""
MISSES_MAX = 20
"""How often an entry may be looked for in vain before it is lost for certain; some five seconds."""
READ_SECONDS_MAX = 5.0
"""For one question to the log while following."""

_OF_AGENTS = AgentPut | AgentDeleted | AgentDescribed | PolicySet
_OF_KEYS = KeyCreated | KeyRevoked

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Control:
    """Tenants, keys, agents, policies and the number of shards, as of the last entry read."""

    def __init__(
        self,
        log: ControlLog,
        sealer: Sealer,
        *,
        poll_seconds: float = 0.25,
        lag_seconds_max: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sealer = sealer
        self.keys = Keys()
        self._log = log
        self._poll_seconds = poll_seconds
        self._lag_seconds_max = lag_seconds_max
        self._clock = clock
        self._state = ControlState()
        self._agents = Agents(sealer)
        self._policies = Policies()
        self._level_at: float | None = None
        self._failure: Misconfigured | InvariantBroken | None = None
        self._reading = asyncio.Lock()
        self._looked = asyncio.Event()
        self._waiting = 0
        self._misses = 0
        self._answers: OrderedDict[str, ControlAnswer] = OrderedDict()
        self._is_told = False

    # ------------------------------------------------------------ reading

    @property
    def is_level(self) -> bool:
        """Whether it was level with the head of the stream within the last second."""
        return (
            self._failure is None
            and self._level_at is not None
            and self._clock() - self._level_at <= self._lag_seconds_max
        )

    async def level(self, *, timeout_seconds: float) -> None:
        """Return at once when level, else as soon as it is. Raises Unavailable when the time is up.

        Somebody has to be in `run` meanwhile.
        """
        if self.is_level:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self.is_level:
                    self._refuse_after_failure()
                    await self._looked.wait()
        except TimeoutError as error:
            raise Unavailable("the control stream cannot be followed at present") from error

    @property
    def shards(self) -> int | None:
        """The recorded number of shards; None before the first start."""
        return self._state.shards

    @property
    def seq(self) -> int:
        """The last control entry read."""
        return self._state.seq

    def agent(self, tenant: str, agent_id: str) -> Agent | None:
        return self._agents.get(tenant, agent_id)

    def agents(self, tenant: str) -> list[Agent]:
        """Return the tenant's agents, sorted by id."""
        return self._agents.of_tenant(tenant)

    def agents_named(self, agent_id: str) -> tuple[Agent, ...]:
        """Return the agents of that id in all tenants, in order of registration."""
        return self._agents.named(agent_id)

    def tenant(self, tenant: str) -> TenantRecord | None:
        return self._state.tenants.get(tenant)

    def tenants(self) -> list[TenantRecord]:
        """Return all tenants, sorted by id."""
        return [record for _, record in sorted(self._state.tenants.items())]

    def policy_text(self, tenant: str, agent_id: str) -> tuple[str, int] | None:
        """Return an agent's bundle and its version, `""` and 0 without one; None where there is no such agent."""
        record = self._state.agents.get(tenant, {}).get(agent_id)
        return None if record is None else (record.bundle, record.policy_version)

    async def policy(self, tenant: str, agent_id: str, *, timeout_seconds: float) -> Policy | None:
        """Return an agent's policy as it is now, compiled; None without one. Raises Unavailable when time is up."""
        text, version = self.policy_text(tenant, agent_id) or ("", 0)
        if not text:
            return None
        found = self._policies.known(tenant, agent_id, version)
        if found is not None:
            return found
        return await self._policies.load(tenant, agent_id, version=version, text=text, timeout_seconds=timeout_seconds)

    # ------------------------------------------------------------ changing

    async def submit(self, entry: AnyControlEntry, *, timeout_seconds: float) -> Accepted:
        """Append the entry and return its answer; from then on it holds in this process, elsewhere within a second.

        Raises the entry's own refusal; TooLarge; Unavailable where it is certainly not in the stream; OutcomeUnknown
        where it may be. Submitting the same entry again is safe: its id de-duplicates it.
        """
        payload = encode_control(entry)
        if len(payload) > ENTRY_BYTES_MAX:
            raise TooLarge(ENTRY_BYTES_MAX)
        self._refuse_after_failure()
        if self._waiting >= SUBMISSIONS_MAX:
            raise Unavailable("too many control changes wait for their answers")
        self._waiting += 1
        try:
            answer = await self._answer(entry.id, payload, timeout_seconds)
        finally:
            self._waiting -= 1
        if isinstance(answer, Accepted):
            return answer
        raise answer

    async def ensure_shards(self, shards: int, *, timeout_seconds: float = 30.0) -> None:
        """Record the number of shards at the first start. Raises Misconfigured where another number is recorded."""
        await self.level(timeout_seconds=timeout_seconds)
        if self.shards is None:
            entry = ShardsSet(id=new_uuid7(), at=time.time_ns() // 1000, by="kernel", shards=shards)
            try:
                await self.submit(entry, timeout_seconds=timeout_seconds)
            except Conflict:
                # Another process was first; the number it recorded is compared below.
                _log.info("the number of shards was recorded by another process")
        if self.shards != shards:
            raise Misconfigured(
                f"the record has {self.shards} shards and STEPWELL_SHARDS is {shards}: the number is fixed by the "
                f"first start, so set STEPWELL_SHARDS={self.shards}"
            )

    # ------------------------------------------------------------ following

    async def run(self) -> None:
        """Follow the stream until cancelled.

        Raises Misconfigured (a secret under another master key, an entry of a later build) or InvariantBroken (a
        missing or damaged entry, a stream that went back): after these nothing may be decided by it any more.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            try:
                await self._catch_up()
                self._tell_once("level with the control stream again", is_fault=False)
                await self._log.wait_control(wait_seconds=self._poll_seconds)
            except Unavailable as error:
                self._tell_once(f"the control stream cannot be read: {error}", is_fault=True)
                await asyncio.sleep(self._poll_seconds)

    async def _catch_up(self) -> None:
        """Read up to the head. One reader at a time, and what it has read is taken over in one piece."""
        async with self._reading:
            self._refuse_after_failure()
            try:
                await self._read()
            except (Misconfigured, InvariantBroken) as error:
                self._failure = error
                raise
            finally:
                self._looked.set()
                self._looked = asyncio.Event()

    async def _read(self) -> None:
        # Taken before the question: the answer may be as old as its way back is long.
        asked_at = self._clock()
        head = await _asked(self._log.control_head())
        if head < self._state.seq:
            raise InvariantBroken(
                f"the control stream went back from entry {self._state.seq} to {head}: it was restored or created anew"
            )
        while self._state.seq < head:
            after_seq = self._state.seq
            page = await _asked(self._log.read_control(after_seq=after_seq))
            self._take_over(self._up_to_a_hole(page))
        self._level_at = asked_at

    def _up_to_a_hole(self, page: Sequence[ControlMessage]) -> list[ControlMessage]:
        """Return what follows what is known without a gap. The entry that is missing may have withdrawn something.

        Raises LogUnavailable where nothing does, since a replica may lag behind; InvariantBroken when that lasts.
        """
        next_seq = self._state.seq + 1
        found = [message for place, message in enumerate(page) if message.seq == next_seq + place]
        if found:
            self._misses = 0
            return found
        self._misses += 1
        if self._misses > MISSES_MAX:
            raise InvariantBroken(f"control entry {next_seq} is missing: what it changed is unknown")
        raise LogUnavailable(f"control entry {next_seq} cannot be read")

    def _take_over(self, page: Sequence[ControlMessage]) -> None:
        entries = [(message.seq, read_control_entry(message)) for message in page]
        state, answers = fold_page(self._state, entries)
        agents = dict.fromkeys((each.tenant, each.agent_id) for _, each in entries if isinstance(each, _OF_AGENTS))
        self._agents.follow(state, agents)
        self._policies.forget(agents)
        self.keys.follow(state, [(each.tenant, each.key_id) for _, each in entries if isinstance(each, _OF_KEYS)])
        self._state = state
        for (_, entry), answer in zip(entries, answers, strict=True):
            self._answers[entry.id] = answer
        while len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)

    async def _answer(self, entry_id: str, payload: bytes, timeout_seconds: float) -> ControlAnswer:
        """Append, then read up to the entry; this process's own fold has the answer."""
        ends_at = self._clock() + timeout_seconds
        try:
            seq = await self._log.append_control(entry_id=entry_id, payload=payload, timeout_seconds=timeout_seconds)
            async with asyncio.timeout(ends_at - self._clock()):
                await self._read_to(seq)
        except (OutcomeUnknown, TimeoutError) as error:
            if entry_id not in self._answers:
                raise OutcomeUnknown("the control entry was sent and not answered in time") from error
        except (Misconfigured, InvariantBroken) as error:
            # `run` raises it too and ends the process; this entry is in the stream, whatever became of us.
            raise OutcomeUnknown("the control stream cannot be followed any further") from error
        if entry_id not in self._answers:
            raise OutcomeUnknown("the control entry was answered too long ago to remember")
        return self._answers[entry_id]

    async def _read_to(self, seq: int) -> None:
        while self._state.seq < seq:
            try:
                await self._catch_up()
            except Unavailable:
                # The entry is in the stream: only time decides whether its answer is still of use.
                await asyncio.sleep(self._poll_seconds)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise Unavailable("the control stream cannot be followed any further by this process")

    def _tell_once(self, line: str, *, is_fault: bool) -> None:
        """One line when it begins and one when it is over, not four a second."""
        if is_fault != self._is_told:
            self._is_told = is_fault
            _log.log(logging.WARNING if is_fault else logging.INFO, line)


async def _asked(question: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            return await question
    except TimeoutError as error:
        raise LogUnavailable(f"the log did not answer within {READ_SECONDS_MAX:g} s") from error
