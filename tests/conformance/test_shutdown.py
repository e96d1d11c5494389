"""K120: how a server stops, and with which leases it does not start."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, envelope
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.routes import ROUTES, Scene
from tests.conformance.harness.stacks import SETTINGS
from tests.support.stack import ROOT, Stack
from tests.support.wait import wait_until_async

LEASE_SETTING = "STEPWELL_DISPATCH_LEASE_TIMEOUT"
AT_ONCE_SECONDS = 1.0
DRAIN_SECONDS = 2.0
EXIT_SECONDS_MAX = 30.0

NewStack = Callable[..., Stack]


@asynccontextmanager
async def _open(kernel: Kernel, lease: Lease, *, wait: int) -> AsyncIterator["asyncio.Task[httpx.Response]"]:
    """A read that waits at the door for the next event."""
    target = f"/v0/executions/{lease.execution_id}/events"
    last = len(await kernel.events(lease.execution_id))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(kernel.get(target, after_seq=last, wait=wait))
        await _let_in(kernel, waiting)
        yield waiting
        waiting.cancel()


async def _let_in(kernel: Kernel, sent: "asyncio.Task[httpx.Response]") -> None:
    """Return once the door has a request that was sent and cannot be answered yet: later ones were."""
    for _ in range(5):
        accepted(await kernel.get("/v0/health"))
    assert not sent.done()


async def _assert_draining(kernel: Kernel, scene: Scene) -> None:
    """Assert that every route with a credential refuses from now on, on old connections and on a new one."""
    signalled_at = time.monotonic()

    async def is_draining() -> bool:
        return (await kernel.get(f"/v0/executions/{scene.execution_id}")).status_code == 503

    await wait_until_async(is_draining, "the first 503", deadline_seconds=AT_ONCE_SECONDS)
    for route in ROUTES:
        if route.access != "open":
            refusal = await kernel.send(scene.call(route))
            envelope(refusal, 503, "unavailable")
            assert int(refusal.headers["retry-after"]) >= 1
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as fresh:
        refusal = await fresh.get(f"{kernel.url}/v0/executions", headers={"Authorization": f"Bearer {kernel.api_key}"})
        envelope(refusal, 503, "unavailable")
        ready = await fresh.get(f"{kernel.url}/v0/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "unavailable"})
    assert time.monotonic() - signalled_at < 3 * AT_ONCE_SECONDS


async def _exit_code(stack: Stack) -> int | None:
    process = stack.process("server")
    await wait_until_async(lambda: not process.is_running, "the end of the server", deadline_seconds=EXIT_SECONDS_MAX)
    return process.exit_code


@pytest.mark.alone
async def test_k120_after_sigterm_new_requests_are_refused_and_open_ones_answered(new_stack: NewStack) -> None:
    stack = new_stack(settings=SETTINGS)
    async with connected(stack.url, stack.api_key) as kernel:
        scene = await Scene.of(kernel)
        await kernel.wait_for_event(scene.execution_id, "dispatch.acked")
        idle = await scene.agent.acknowledged()
        async with _open(kernel, scene.lease, wait=20) as reading, _open(kernel, idle, wait=4) as idling:
            # Nothing that is submitted is answered until the log goes on.
            stack.nats.pause()
            submitting = asyncio.ensure_future(scene.lease.submit("in-flight"))
            await _let_in(kernel, submitting)

            stack.process("server").send(signal.SIGTERM)

            await _assert_draining(kernel, scene)
            assert [each.done() for each in (reading, idling, submitting)] == [False] * 3
            stack.nats.resume()
            decision = accepted(await submitting)
            assert decision["decision"] == "proceed"
            events = accepted(await reading)
            assert events[0]["type"] == "step.proposed"
            assert {event["payload"]["step_id"] for event in events} == {decision["step_id"]}
            assert accepted(await idling) == []
        assert await _exit_code(stack) == 0


@pytest.mark.alone
async def test_k120_what_is_open_at_the_end_of_the_drain_is_told_what_is_known(new_stack: NewStack) -> None:
    stack = new_stack(settings=SETTINGS | {"STEPWELL_DRAIN_TIMEOUT": f"{DRAIN_SECONDS:g}s"})
    async with connected(stack.url, stack.api_key) as kernel:
        scene = await Scene.of(kernel)
        await kernel.wait_for_event(scene.execution_id, "dispatch.acked")
        async with _open(kernel, scene.lease, wait=25) as reading:
            stack.nats.pause()
            submitting = asyncio.ensure_future(scene.lease.submit("in-flight"))
            await _let_in(kernel, submitting)
            signalled_at = time.monotonic()

            stack.process("server").send(signal.SIGTERM)

            envelope(await reading, 503, "unavailable")
            envelope(await submitting, 504, "outcome_unknown")
            assert DRAIN_SECONDS - 0.2 <= time.monotonic() - signalled_at <= DRAIN_SECONDS + 2.0
        stack.nats.resume()
        assert await _exit_code(stack) == 0


@pytest.mark.alone
async def test_k120_a_server_without_open_requests_stops_at_once(new_stack: NewStack) -> None:
    stack = new_stack(settings=SETTINGS)
    async with connected(stack.url, stack.api_key) as kernel:
        lease = await (await kernel.agent()).acknowledged()
        stack.process("server").send(signal.SIGTERM)
        signalled_at = time.monotonic()
        assert await _exit_code(stack) == 0
        assert time.monotonic() - signalled_at < 5.0

        stack.restart("server")

        # The lease has outlived the process.
        accepted(await lease.heartbeat(), 204)
        await lease.proceed("search")


@pytest.mark.parametrize(("command", "lease"), [("server", "9.999s"), ("server", "9"), ("dev", "9999ms")])
def test_k120_a_lease_timeout_below_10_s_stops_the_start(tmp_path: Path, command: str, lease: str) -> None:
    arguments = ["--data", str(tmp_path)] if command == "dev" else []
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    ours = {"PYTHONPATH": str(ROOT), LEASE_SETTING: lease, "STEPWELL_LISTEN_ADDR": "127.0.0.1:0"}
    ours |= {"STEPWELL_NATS_URL": "nats://127.0.0.1:1", "STEPWELL_REDIS_URL": "redis://127.0.0.1:1"}
    ours |= {"STEPWELL_MASTER_KEY": "0" * 32, "STEPWELL_API_KEY": "key-of-this-test"}

    ended = subprocess.run(
        [sys.executable, "-m", "kernel.cli", command, *arguments],
        env=plain | ours,
        capture_output=True,
        text=True,
        timeout=EXIT_SECONDS_MAX,
        check=False,
    )

    assert ended.returncode > 0
    assert LEASE_SETTING in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("lease_seconds", "warns"), [(10, True), (44.9, True), (45, False)])
def test_k120_a_lease_timeout_below_45_s_warns(new_stack: NewStack, lease_seconds: float, warns: bool) -> None:
    stack = new_stack(lease_seconds=lease_seconds, settings=SETTINGS)

    warnings = [line for line in stack.process("server").log().splitlines() if LEASE_SETTING in line]

    assert bool(warnings) is warns
    assert all("WARNING" in line.upper() for line in warnings)
