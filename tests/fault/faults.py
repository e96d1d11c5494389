"""Everything that may go wrong around the kernel, each as one coroutine that does it and puts it right again."""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping

import nats
import redis
from nats.js.errors import APIError

from kernel.log.naming import stream_name
from tests.fault.faulty_stack import FaultyStack
from tests.fault.links import Trouble
from tests.support.scripted_agent import pass_time

SHARDS = 8
SERVERS = ("nats", "valkey")
STALL_SECONDS = {"door": 6.0, "projector": 3.5, "dispatcher": 6.0, "nats": 4.0, "valkey": 4.0}
"""Longer than what each holds for a time: a door's sign of life, the fence, a hold on due work, a call's patience."""
DOWN_SECONDS_MAX = 2.0
TROUBLE_SECONDS_MAX = 4.0
FULL_SECONDS = 2.0
STEP_SECONDS = 3600.0
CONNECT_SECONDS = 10

Fault = Callable[["Faults"], Awaitable[None]]


class Faults:
    """Does faults to one stack. `choose` decides whom and how long; the name in the log decides what."""

    def __init__(self, stack: FaultyStack, choose: random.Random) -> None:
        self.stack = stack
        self.choose = choose
        self.done: list[str] = []
        """What was done so far, in order."""

    async def do(self, name: str) -> None:
        self.done.append(name)
        await FAULTS[name](self)

    # ------------------------------------------------------------ processes

    async def kill(self, *roles: str) -> None:
        """`kill -9` of one process of each role at once, then back after a while, servers first."""
        names = [self._one_of(role) for role in roles]
        await asyncio.gather(*(asyncio.to_thread(self.stack.kill, name) for name in names))
        await pass_time(self.choose.uniform(0.0, DOWN_SECONDS_MAX))
        await self.bring_back(names)

    async def bring_back(self, names: list[str]) -> None:
        for group in ([n for n in names if n in SERVERS], [n for n in names if n not in SERVERS]):
            await asyncio.gather(*(asyncio.to_thread(self.stack.restart, name) for name in group))

    async def stall(self, role: str) -> None:
        """SIGSTOP past whatever it holds for a time, then SIGCONT."""
        name = self._one_of(role)
        process = {"nats": self.stack.nats, "valkey": self.stack.valkey}.get(name) or self.stack.process(name)
        process.pause()
        try:
            await pass_time(STALL_SECONDS[role])
        finally:
            process.resume()

    def _one_of(self, role: str) -> str:
        names = [name for name in self.stack.processes if name.split("-")[0] == role]
        return self.choose.choice(names) if names else role

    # ------------------------------------------------------------ the view

    async def lose_the_view(self) -> None:
        await self._tell_valkey(lambda client: client.flushall())

    async def forget_the_scripts(self) -> None:
        await self._tell_valkey(lambda client: client.script_flush())

    async def take_the_view_back(self) -> None:
        """Valkey dies and comes back with its data of some time ago."""
        data = self.stack.folder / "valkey" / "appendonlydir"
        older = self.stack.folder / "valkey-older"
        await asyncio.to_thread(shutil.copytree, data, older)
        await pass_time(self.choose.uniform(0.5, 2.0))
        await asyncio.to_thread(self.stack.kill, "valkey")
        shutil.rmtree(data)
        older.rename(data)
        await asyncio.to_thread(self.stack.restart, "valkey")

    async def fill_the_view(self) -> None:
        """No room in Valkey: every write is refused that may be."""
        await self._tell_valkey(lambda client: client.config_set("maxmemory", 1024 * 1024))
        await pass_time(FULL_SECONDS)
        await self._tell_valkey(lambda client: client.config_set("maxmemory", 0))

    async def tear_the_scripts(self) -> None:
        """One command of a script is refused in its middle; what came before it stays done."""
        await self._tell_valkey(lambda client: client.execute_command("ACL", "SETUSER", "default", "-zadd", "-sadd"))
        await pass_time(self.choose.uniform(0.1, FULL_SECONDS))
        await self._tell_valkey(lambda client: client.execute_command("ACL", "SETUSER", "default", "+@all"))

    async def share_a_shard(self) -> None:
        """The fence is taken away, so that another projector takes a shard whose owner still believes in it."""
        shards = self.choose.sample(range(SHARDS), 3)
        await self._tell_valkey(lambda client: client.delete(*(f"{{s{shard}}}:owner" for shard in shards)))

    async def _tell_valkey(self, tell: Callable[["redis.Redis"], object]) -> None:
        def told() -> None:
            with redis.Redis.from_url(self.stack.valkey.url) as client:
                tell(client)

        await asyncio.to_thread(told)

    # ------------------------------------------------------------ the log and the network

    async def fill_the_log(self) -> None:
        """Every stream refuses what does not fit, then has room again."""
        await limit_the_log(self.stack.nats.url, bytes_max=1)
        await pass_time(FULL_SECONDS)
        await limit_the_log(self.stack.nats.url, bytes_max=-1)

    async def trouble(self, server: str, trouble: Trouble) -> None:
        link = self.stack.links[server]
        link.begin(trouble)
        try:
            await pass_time(self.choose.uniform(1.0, TROUBLE_SECONDS_MAX))
        finally:
            link.end(drop=self.choose.random() < 0.5)

    # ------------------------------------------------------------ time

    async def step_the_clock(self, command: str) -> None:
        """The wall clock of a kind of process is an hour off for a while, either way."""
        self.stack.set_clock(command, self.choose.choice((-STEP_SECONDS, STEP_SECONDS)))
        try:
            await pass_time(self.choose.uniform(1.0, TROUBLE_SECONDS_MAX))
        finally:
            self.stack.set_clock(command, 0.0)


async def limit_the_log(url: str, *, bytes_max: int, shards: tuple[int, ...] = tuple(range(SHARDS))) -> None:
    """Let the shards' streams hold so many bytes, -1 for as many as there is room for."""
    connection = await nats.connect(url, connect_timeout=CONNECT_SECONDS, allow_reconnect=False)
    try:
        streams = connection.jetstream()
        for shard in shards:
            info = await streams.stream_info(stream_name(shard))
            held = max(bytes_max, info.state.bytes) if bytes_max > 0 else bytes_max
            # What is held stays, whatever the limit: the streams refuse what is new.
            await streams.update_stream(info.config.evolve(max_bytes=held))
    except APIError as error:
        raise AssertionError(f"the streams could not be limited: {error}") from error
    finally:
        await connection.close()


_ROLES = ("door", "projector", "dispatcher", "nats", "valkey")
_TROUBLES: tuple[Trouble, ...] = ("slow", "silent", "cut")
FAULTS: Mapping[str, Fault] = {
    **{f"kill {role}": (lambda faults, role=role: faults.kill(role)) for role in _ROLES},
    **{f"stall {role}": (lambda faults, role=role: faults.stall(role)) for role in _ROLES},
    "kill the kernel": lambda faults: faults.kill("door", "projector", "dispatcher"),
    "kill everything": lambda faults: faults.kill(*_ROLES),
    "lose the view": Faults.lose_the_view,
    "forget the scripts": Faults.forget_the_scripts,
    "take the view back": Faults.take_the_view_back,
    "fill the view": Faults.fill_the_view,
    "tear the scripts": Faults.tear_the_scripts,
    "share a shard": Faults.share_a_shard,
    "fill the log": Faults.fill_the_log,
    **{
        f"{trouble} {server}": (lambda faults, s=server, t=trouble: faults.trouble(s, t))
        for server in SERVERS
        for trouble in _TROUBLES
    },
    **{
        f"step the clock of the {role}": (lambda faults, role=role: faults.step_the_clock(role))
        for role in ("door", "projector", "dispatcher")
    },
}
