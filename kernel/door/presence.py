"""What a door does in the background: say that it lives, learn how far the log reaches, know whether it is ready."""

import asyncio
import logging

from kernel.control.control import Control
from kernel.domain.errors import KernelError
from kernel.door.freshness import Freshness
from kernel.door.gate import Gate
from kernel.door.probing import Probes
from kernel.ports import DoorView, Log
from kernel.settings import Settings

PULSE_SECONDS = 1.0
PULSE_SECONDS_MAX = 2.0
"""What one pulse may take; the next one follows at once."""
SILENCE_SECONDS_MAX = 3.0
"""After so long without a whole pulse the door is not ready."""

_log = logging.getLogger(__name__)


class Presence:
    """The door's own liveness and that of what it stands on."""

    def __init__(
        self, *, settings: Settings, log: Log, view: DoorView, control: Control, freshness: Freshness, gate: Gate
    ) -> None:
        self._log = log
        self._gate = gate
        self._probes = Probes(log=log, shards=settings.shards)
        self._view = view
        self._control = control
        self._freshness = freshness
        self._shards = range(settings.shards)
        self._pulse_at: float | None = None
        self._next_shard = 0
        self._told = ""

    def is_ready(self) -> bool:
        """Whether requests can be answered now, as far as the last pulse tells."""
        pulse_at = self._pulse_at
        return (
            pulse_at is not None
            and asyncio.get_running_loop().time() - pulse_at <= SILENCE_SECONDS_MAX
            and self._freshness.is_known
            and self._gate.is_compared
            and not self.trouble()
            and self._log.is_connected
            and self._control.is_level
        )

    def trouble(self) -> str:
        """Return why every change is refused, and what an operator has to do; empty where nobody has to."""
        return self._gate.trouble(self._shards)

    async def run(self) -> None:
        """Keep the pulse until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            begun_at = loop.time()
            try:
                async with asyncio.timeout(PULSE_SECONDS_MAX):
                    await self._pulse()
            except TimeoutError:
                self._tell("the log or the view is slow to answer")
            except KernelError as error:
                self._tell(f"the log or the view cannot be asked: {error}")
            except Exception:  # noqa: BLE001 - the top of a loop
                # A door that stopped saying it lives would hold back every lease.
                _log.exception("the door's pulse failed")
            else:
                self._tell(self.trouble())
                self._pulse_at = loop.time()
            await asyncio.sleep(max(PULSE_SECONDS / 4, begun_at + PULSE_SECONDS - loop.time()))

    async def _pulse(self) -> None:
        self._probes.send()
        # A door that could not answer a heartbeat is as good as silent: its agents must not be expired for that.
        if self._control.is_level:
            await self._view.beat([shard for shard in self._shards if self._freshness.floor(shard) >= 0])
        await self._view.check()
        unknown = [shard for shard in self._shards if self._freshness.floor(shard) < 0]
        trouble: KernelError | None = None
        for shard in unknown or [self._next_shard]:
            try:
                await self._ask_log(shard)
            except KernelError as error:
                # One shard that is away does not keep the floors of the others unknown.
                trouble = error
        self._next_shard = (self._next_shard + 1) % len(self._shards)
        if trouble is not None:
            raise trouble

    async def _ask_log(self, shard: int) -> None:
        """Compare clocks with the broker, and take the log's head for the floor of a shard that has none.

        Whatever any door answered before this one started, or before the view was lost, is at or below the head.
        """
        losses = self._freshness.losses_known
        asked_at = self._gate.monotonic()
        state = await self._log.state(shard)
        self._gate.compare(state.broker_time, asked_at=asked_at, answered_at=self._gate.monotonic())
        if self._freshness.floor(shard) < 0:
            self._freshness.learn_floor(shard, state.last_seq, losses=losses)

    def _tell(self, trouble: str) -> None:
        """Log a change of state once, not every second."""
        if trouble != self._told:
            _log.log(logging.WARNING if trouble else logging.INFO, "%s", trouble or "the door's pulse is steady")
            self._told = trouble
