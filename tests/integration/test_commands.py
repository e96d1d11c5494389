"""The commands as an operator meets them: what they refuse to start with, and how they end."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import httpx
import pytest
from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig
from redis.asyncio import Redis

from kernel.embedded import embedded_valkey, free_port
from tests.support.stack import ROOT, Stack
from tests.support.wait import wait_until

MASTER_KEY = "a master key of the tests"
SECONDS_MAX = 60.0


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    return plain | {"PYTHONPATH": str(ROOT)} | {f"STEPWELL_{name}": value for name, value in settings.items()}


def _run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "kernel.cli", *arguments],
        env=_environment(settings),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def _refusal(*arguments: str, **settings: str) -> str:
    """The line with which a start is refused."""
    done = _run(*arguments, **settings)
    assert done.returncode == 2, done.stderr
    *logged, line = done.stderr.strip().splitlines()
    assert line.startswith("stepwell: "), done.stderr
    assert not any(text.startswith(("stepwell:", "Traceback")) for text in logged), done.stderr
    return line


@pytest.fixture
def storage(fresh_nats: Client, fresh_redis: Redis, nats_url: str, redis_url: str) -> dict[str, str]:
    """Settings with which any role would start."""
    return {
        "NATS_URL": nats_url,
        "REDIS_URL": redis_url,
        "MASTER_KEY": MASTER_KEY,
        "API_KEY": "key",
        "LISTEN_ADDR": "127.0.0.1:0",
    }


# ---------------------------------------------------------------- without servers


def test_version_is_one_line() -> None:
    done = _run("version")

    assert done.returncode == 0
    assert done.stdout.startswith("stepwell ")
    assert len(done.stdout.splitlines()) == 1


def test_help_names_every_command() -> None:
    shown = _run("--help").stdout

    for command in ("dev", "server", "door", "projector", "dispatcher", "version"):
        assert f"\n    {command}" in shown


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("server", "--nonsense"), ("projector", "--port", "1")])
def test_a_command_line_that_means_nothing_is_refused(arguments: tuple[str, ...]) -> None:
    done = _run(*arguments)

    assert done.returncode == 2
    assert "usage: stepwell" in done.stderr


@pytest.mark.parametrize("command", ["server", "door"])
def test_what_serves_http_needs_addresses_a_master_key_and_a_key(command: str) -> None:
    line = _refusal(command)

    for name in ("STEPWELL_NATS_URL", "STEPWELL_REDIS_URL", "STEPWELL_MASTER_KEY", "STEPWELL_API_KEY"):
        assert name in line


@pytest.mark.parametrize("command", ["projector", "dispatcher"])
def test_a_worker_needs_addresses_and_a_master_key(command: str) -> None:
    line = _refusal(command)

    for name in ("STEPWELL_NATS_URL", "STEPWELL_REDIS_URL", "STEPWELL_MASTER_KEY"):
        assert name in line
    assert "STEPWELL_API_KEY" not in line


def test_the_workers_package_runs_the_same_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers", "projector"],
        env=_environment({}),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )

    assert done.returncode == 2
    assert "STEPWELL_NATS_URL" in done.stderr


def test_a_lease_below_ten_seconds_stops_the_start() -> None:
    assert "STEPWELL_DISPATCH_LEASE_TIMEOUT=9s cannot be used" in _refusal("server", DISPATCH_LEASE_TIMEOUT="9s")


def test_a_flag_is_named_in_its_refusal() -> None:
    assert "--shards=0 cannot be used" in _refusal("projector", "--shards", "0")


def test_a_bad_manifest_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "stepwell.yaml"
    path.write_text("agents: [{id: a, webhook_url: 'https://b.example', secret: '${NOWHERE}'}]")
    settings = {"NATS_URL": "nats://x", "REDIS_URL": "redis://x", "MASTER_KEY": MASTER_KEY, "API_KEY": "key"}

    assert "the variable NOWHERE is not set" in _refusal("server", "--config", str(path), **settings)


def test_a_signal_ends_a_start_that_waits_for_its_servers() -> None:
    settings = {"NATS_URL": f"nats://127.0.0.1:{free_port()}", "REDIS_URL": "redis://x", "MASTER_KEY": MASTER_KEY}
    process = subprocess.Popen(
        [sys.executable, "-m", "kernel.cli", "projector"],
        env=_environment(settings),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        assert any("NATS" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------- what the servers hold


async def test_a_redis_that_evicts_is_refused(tmp_path: Path, storage: dict[str, str]) -> None:
    async with embedded_valkey(tmp_path / "evicting", arguments=("--maxmemory-policy", "allkeys-lru")) as valkey:
        line = await asyncio.to_thread(_refusal, "projector", **storage | {"REDIS_URL": valkey.url})

    assert "set maxmemory-policy to noeviction" in line


async def test_another_number_of_shards_is_refused_and_makes_no_streams(
    storage: dict[str, str], fresh_nats: Client
) -> None:
    await _start_once(storage | {"SHARDS": "2"})
    before = await _streams(fresh_nats)

    line = await asyncio.to_thread(_refusal, "projector", **storage | {"SHARDS": "4"})

    assert "set STEPWELL_SHARDS=2" in line
    assert await _streams(fresh_nats) == before


async def test_another_master_key_is_refused(storage: dict[str, str], tmp_path: Path) -> None:
    await _start_once(storage | {"SHARDS": "2"}, config=_manifest(tmp_path))

    line = await asyncio.to_thread(_refusal, "projector", **storage | {"SHARDS": "2", "MASTER_KEY": MASTER_KEY * 2})

    assert "start with the master key that the record was written with" in line
    assert MASTER_KEY not in line


async def test_a_stream_without_file_storage_is_refused(storage: dict[str, str], fresh_nats: Client) -> None:
    await _start_once(storage | {"SHARDS": "2"})
    jetstream = fresh_nats.jetstream()
    name = next(name for name in await _streams(fresh_nats) if "CONTROL" not in name)
    config = (await jetstream.stream_info(name)).config
    await jetstream.delete_stream(name)
    await jetstream.add_stream(StreamConfig(name=name, subjects=config.subjects, storage=StorageType.MEMORY))

    line = await asyncio.to_thread(_refusal, "projector", **storage | {"SHARDS": "2"})

    assert name in line
    assert "storage" in line


async def test_a_port_in_use_is_refused(storage: dict[str, str]) -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        line = await asyncio.to_thread(_refusal, "server", "--port", str(port), **storage)

    assert f"cannot listen on 127.0.0.1:{port}" in line


async def test_a_manifest_is_applied_once(storage: dict[str, str], fresh_nats: Client, tmp_path: Path) -> None:
    settings = storage | {"SHARDS": "2"}
    await _start_once(settings, config=_manifest(tmp_path))
    control = next(name for name in await _streams(fresh_nats) if "CONTROL" in name)
    first = (await fresh_nats.jetstream().stream_info(control)).state.messages
    assert first == 2

    await _start_once(settings, config=_manifest(tmp_path))
    assert (await fresh_nats.jetstream().stream_info(control)).state.messages == first

    await _start_once(settings, config=_manifest(tmp_path, concurrency=3))
    assert (await fresh_nats.jetstream().stream_info(control)).state.messages == first + 1


def _manifest(folder: Path, *, concurrency: int = 2) -> Path:
    path = folder / "stepwell.yaml"
    path.write_text(
        "agents: [{id: a, webhook_url: 'https://127.0.0.1:9', secret: a secret of sixteen, "
        f"max_concurrency: {concurrency}}}]"
    )
    return path


async def _start_once(settings: dict[str, str], *, config: Path | None = None) -> None:
    """Start a door until it is ready, and stop it in order."""
    arguments = ["door"] if config is None else ["door", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kernel.cli",
        *arguments,
        env=_environment(settings | {"WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"}),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while b" ready: " not in (line := await process.stderr.readline()):
                assert line, "the door ended before it was ready"
            process.terminate()
            await process.communicate()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _streams(nats: Client) -> list[str]:
    return sorted(str(info.config.name) for info in await nats.jetstream().streams_info())


# ---------------------------------------------------------------- ending, and what is logged


def test_sigterm_refuses_what_is_new_and_answers_what_is_open(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack("dev")
    process = stack.process("dev")
    with _OpenPoll(stack, wait_seconds=3) as poll:
        process.send(signal.SIGTERM)
        wait_until(lambda: poll.client.get("/v0/ready").status_code == 503, "the door to drain")
        refused = poll.client.get("/v0/executions")

    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert poll.answer.status_code == 200
    wait_until(lambda: process.exit_code == 0, "the server to end in order")


def test_a_second_signal_ends_the_waiting(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack("dev")
    process = stack.process("dev")
    with _OpenPoll(stack, wait_seconds=25) as poll:
        process.send(signal.SIGINT)
        wait_until(lambda: poll.client.get("/v0/ready").status_code == 503, "the door to drain")

        process.send(signal.SIGINT)

        wait_until(lambda: process.exit_code == 0, "the server to end", deadline_seconds=10)

    assert poll.answer.status_code == 503
    assert "ERROR" not in process.log()


class _OpenPoll:
    """A long poll for events, open from the beginning of the block and answered at its end."""

    def __init__(self, stack: Stack, *, wait_seconds: int) -> None:
        self.client = httpx.Client(base_url=stack.url, trust_env=False, timeout=40)
        self._wait_seconds = wait_seconds
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(target=self._poll)

    @property
    def answer(self) -> httpx.Response:
        return self._answers[0]

    def __enter__(self) -> Self:
        agent = {"id": "a", "webhook_url": "http://127.0.0.1:9/", "secret": "s"}
        self.client.post("/v0/agents", json=agent).raise_for_status()
        self._path = f"/v0/executions/{self.client.post('/v0/executions', json={'agent_id': 'a'}).json()['id']}/events"
        self._thread.start()
        # The other open request is the one that asks.
        wait_until(lambda: "stepwell_requests_open 2" in self.client.get("/metrics").text, "the long poll to be open")
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self.client.close()

    def _poll(self) -> None:
        query = {"after_seq": 1000, "wait": self._wait_seconds}
        with httpx.Client(base_url=str(self.client.base_url), trust_env=False, timeout=40) as client:
            self._answers.append(client.get(self._path, params=query))


def test_no_secret_is_ever_logged(new_stack: Callable[..., Stack]) -> None:
    secret, manifest_secret = "a secret of an agent by request", "a secret of an agent by manifest"
    stack = new_stack(
        settings={"STEPWELL_LOG_LEVEL": "debug", "STEPWELL_MASTER_KEY": MASTER_KEY, "HOOK_SECRET": manifest_secret},
        config="agents: [{id: b, webhook_url: 'http://127.0.0.1:9', secret: '${HOOK_SECRET}'}]",
    )
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    with httpx.Client(base_url=stack.url, headers=headers, trust_env=False, timeout=30) as client:
        agent = {"id": "a", "webhook_url": "http://127.0.0.1:9/", "secret": secret}
        client.post("/v0/agents", json=agent).raise_for_status()
        for agent_id in ("a", "b"):
            client.post("/v0/executions", json={"agent_id": agent_id}).raise_for_status()
        wait_until(lambda: stack.logs()["server"].count("unreachable") >= 2, "both webhooks to fail")
    stack.process("server").terminate()

    log = stack.logs()["server"]
    for hidden in (secret, manifest_secret, MASTER_KEY, stack.api_key):
        assert hidden not in log
