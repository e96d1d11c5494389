"""The faults of a run: which, when and for how long, all drawn from the seed. `mend` puts everything right again."""

import random
from collections.abc import Awaitable, Callable

from kernel.log.memory import MemoryLog
from tests.fault.simulation.agents import Agent
from tests.fault.simulation.virtual import Process
from tests.fault.simulation.world import SETTINGS, Role, World

FAULTS_SECONDS = 5.0
"""Faults begin within that long."""
_STEPS_MAX = 80
_CLOCK_ERROR_NS_MAX = 450_000_000
"""Two doors then differ by less than a second."""


class FaultPlan:
    """Draws the faults and plays them."""

    def __init__(self, world: World, agent: Agent, rng: random.Random) -> None:
        self._world = world
        self._agent = agent
        self._rng = rng
        self.played: list[str] = []
        self._is_slow = False
        self._lost_calls = 0.0

    @property
    def is_view_rewound(self) -> bool:
        """Whether the view was made to contradict what its readers know."""
        return any(line.endswith(("view_back", "view_lost")) for line in self.played)

    @property
    def are_copies_stored(self) -> bool:
        """Whether the log failed to keep entries single by their ids."""
        return any(line.endswith("copies_stored") for line in self.played)

    @property
    def is_prompt(self) -> bool:
        """Whether nothing but the kernel itself could hold an answer back beyond its budget."""
        return not self._is_slow and not any("freeze" in line for line in self.played)

    @property
    def are_calls_lost(self) -> bool:
        """Whether agents could not reach any door at times, though nothing of ours was away."""
        return self._lost_calls > 0.05

    def chosen(self) -> list[Callable[[], Awaitable[None]]]:
        """Return the faults of this run, each a coroutine function that waits for its time and undoes itself."""
        rng = self._rng
        count = rng.choice((0, 1, 1, 2, 2, 3, 4))
        kinds = [rng.choice(_KINDS) for _ in range(count)]
        self._set_weather()
        return [lambda kind=kind: self._play(kind) for kind in kinds]

    def _set_weather(self) -> None:
        """What is a little wrong all the time."""
        rng, network = self._rng, self._world.network
        network.slowness = rng.choice((0.2, 1.0, 1.0, 10.0))
        self._is_slow = network.slowness > 1
        network.lost_wakes = rng.choice((0.0, 0.0, 0.2, 1.0))
        network.repeated_wakes = rng.choice((0.0, 0.0, 0.3))
        self._lost_calls = network.lost_calls = rng.choice((0.0, 0.0, 0.05, 0.15))
        network.lost_answers = rng.choice((0.0, 0.0, 0.0, 0.02))
        self._agent.crashes = rng.choice((0.0, 0.0, 0.03, 0.1))
        self._agent.failing_answers = rng.choice((0.0, 0.0, 0.1, 0.3))
        self._step_clocks()

    def mend(self) -> None:
        """End every fault at once."""
        world, network = self._world, self._world.network
        network.slowness = 1.0
        network.lost_wakes = network.repeated_wakes = network.lost_calls = network.lost_answers = 0.0
        self._agent.crashes = self._agent.failing_answers = 0.0
        world.view.is_unavailable = False
        world.log.drop_acks = world.log.reject_full = False
        if not world.log.is_connected:
            world.log.come_back()
        for role in world.roles:
            role.link.mend()
            role.process.steps_left = -1
            world.loop.thaw(role.process)
            world.bring_up(role)
        for number, instance in enumerate(self._agent.instances):
            self._agent.bring_up(number)
            if instance is not None:
                instance.process.steps_left = -1
                world.loop.thaw(instance.process)

    async def _play(self, kind: str) -> None:
        await self._pause(0.1, FAULTS_SECONDS)
        self.played.append(f"{self._world.loop.time():.3f} {kind}")
        await getattr(self, f"_{kind}")()

    async def _pause(self, low: float, high: float) -> None:
        await self._world.network.pause(low + (high - low) * self._rng.random())

    def _role(self, kind: str) -> Role:
        return self._rng.choice(self._world.of_kind(kind))

    # ------------------------------------------------------------ processes

    async def _kill(self, kind: str) -> None:
        """Let a process die between any two of its steps, and come back as another."""
        role, world = self._role(kind), self._world
        process = role.process

        def die() -> None:
            if role.process is process:
                world.bring_down(role)

        process.at_the_end = die
        process.steps_left = self._rng.randrange(_STEPS_MAX)
        await self._pause(0.05, 2.5)
        process.steps_left = -1
        world.bring_up(role)

    async def _kill_door(self) -> None:
        await self._kill("door")

    async def _doors_away(self) -> None:
        """All doors die, for as long as a lease and longer: no agent reaches any."""
        doors = self._world.of_kind("door")
        for role in doors:
            self._world.bring_down(role)
        await self._pause(SETTINGS.lease_seconds * 0.5, SETTINGS.lease_seconds * 1.6)
        for role in doors:
            self._world.bring_up(role)

    async def _kill_projector(self) -> None:
        await self._kill("projector")

    async def _kill_dispatcher(self) -> None:
        await self._kill("dispatcher")

    async def _kill_agent(self) -> None:
        agent, number = self._agent, self._rng.randrange(Agent.INSTANCES)
        instance = agent.instances[number]
        if instance is None:
            return

        def die() -> None:
            if agent.instances[number] is instance:
                agent.bring_down(number)

        process = instance.process
        process.at_the_end = die
        process.steps_left = self._rng.randrange(_STEPS_MAX)
        await self._pause(0.05, 1.5)
        process.steps_left = -1
        agent.bring_up(number)

    async def _freeze_agent(self) -> None:
        """Longer than a lease: what it does when it goes on is too late."""
        instance = self._rng.choice(self._agent.instances)
        if instance is not None:
            lease = SETTINGS.lease_seconds
            await self._freeze_process(instance.process, lease * 0.8, lease * 2)

    async def _freeze(self, kind: str, low: float, high: float) -> None:
        await self._freeze_process(self._role(kind).process, low, high)

    async def _freeze_process(self, process: Process, low: float, high: float) -> None:
        """Stop a process between any two of its steps, and let it go on as if nothing had been."""
        loop = self._world.loop
        process.at_the_end = lambda: loop.freeze(process)
        process.steps_left = self._rng.randrange(_STEPS_MAX)
        await self._pause(low, high)
        process.steps_left = -1
        loop.thaw(process)

    async def _freeze_projector(self) -> None:
        ttl = SETTINGS.owner_ttl_seconds
        await self._freeze("projector", ttl * 0.9, ttl * 1.6)

    async def _freeze_dispatcher(self) -> None:
        await self._freeze("dispatcher", 0.5, 6.5)

    async def _freeze_door(self) -> None:
        await self._freeze("door", 0.5, 6.5)

    # ------------------------------------------------------------ the view

    async def _half_apply(self) -> None:
        self._world.view.fail_next_apply(self._rng.randrange(SETTINGS.shards))

    async def _half_apply_and_death(self) -> None:
        await self._half_apply()
        await self._kill_projector()

    async def _view_lost(self) -> None:
        self._world.view.lose_everything()

    async def _view_back(self) -> None:
        snapshot = self._world.view.snapshot()
        await self._pause(0.1, 2.0)
        self._world.view.go_back(snapshot)

    async def _view_away(self) -> None:
        self._world.view.is_unavailable = True
        await self._pause(0.1, 4.0)
        self._world.view.is_unavailable = False

    async def _view_answers_lost(self) -> None:
        self._world.network.lost_answers = 0.3
        await self._pause(0.2, 2.0)
        self._world.network.lost_answers = 0.0

    # ------------------------------------------------------------ the log

    async def _log_away(self) -> None:
        log = self._world.log
        if not log.is_connected:
            return
        log.go_offline()
        await self._pause(0.1, 6.5)
        if not log.is_connected:
            log.come_back()

    async def _cut_from_log(self) -> None:
        """One process alone loses the log, and with it all wake-ups."""
        link = self._rng.choice(self._world.roles).link
        link.cut_log()
        await self._pause(0.2, 6.5)
        link.mend()

    async def _cut_from_view(self) -> None:
        """One process alone loses the view."""
        link = self._rng.choice(self._world.roles).link
        link.is_view_cut = True
        await self._pause(0.2, 6.5)
        link.mend()

    async def _acks_dropped(self) -> None:
        log = self._world.log
        log.drop_acks = True
        await self._pause(0.1, 3.0)
        log.drop_acks = False

    async def _log_full(self) -> None:
        log = self._world.log
        log.reject_full = True
        await self._pause(0.1, 2.0)
        log.reject_full = False

    async def _copies_stored(self) -> None:
        """The broker forgets ids while acknowledgements are lost: whatever is sent again is stored again."""
        log: MemoryLog = self._world.log
        log.drop_acks = True
        for _ in range(4):
            await self._pause(0.1, 0.8)
            for shard in range(SETTINGS.shards):
                log.forget_ids(shard)
        log.drop_acks = False

    async def _clocks_step(self) -> None:
        self._step_clocks()

    def _step_clocks(self) -> None:
        for role in self._world.roles:
            role.process.clock_error_ns = self._rng.randint(-_CLOCK_ERROR_NS_MAX, _CLOCK_ERROR_NS_MAX)


_KINDS = (
    "kill_door",
    "doors_away",
    "kill_projector",
    "kill_projector",
    "kill_dispatcher",
    "kill_agent",
    "freeze_agent",
    "freeze_agent",
    "freeze_projector",
    "freeze_projector",
    "freeze_dispatcher",
    "freeze_door",
    "half_apply",
    "half_apply_and_death",
    "view_lost",
    "view_back",
    "view_away",
    "view_answers_lost",
    "log_away",
    "cut_from_log",
    "cut_from_log",
    "cut_from_view",
    "cut_from_view",
    "acks_dropped",
    "log_full",
    "copies_stored",
    "clocks_step",
)
