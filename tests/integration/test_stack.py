"""The stack that black-box tests stand on: it starts, answers, survives kills, and leaves nothing behind."""

import os
import signal
from collections.abc import Callable

import httpx
import pytest

from tests.support.stack import Stack
from tests.support.wait import wait_until


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _create(stack: Stack, url: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    agent = {"id": "a", "webhook_url": "http://127.0.0.1:9/", "secret": "a secret of sixteen bytes"}
    with httpx.Client(base_url=url or stack.url, headers=headers, trust_env=False, timeout=30) as client:
        client.post("/v0/agents", json=agent).raise_for_status()
        return client.post("/v0/executions", json={"agent_id": "a"})


def test_the_shared_stack_answers(stack: Stack) -> None:
    assert _create(stack).status_code == 201
    assert set(stack.processes) == {"server"}


def test_dev_needs_no_key(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack("dev")

    answer = httpx.post(f"{stack.url}/v0/executions", json={"agent_id": "a"}, trust_env=False)

    assert answer.status_code == 404


def test_roles_apart_serve_together_and_any_of_them_may_be_killed(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(processes="apart", doors=2)
    assert set(stack.processes) == {"projector", "dispatcher", "door", "door-2"}
    url, second_url = stack.urls

    for name in ("door", "projector", "dispatcher"):
        stack.kill(name)
        assert stack.process(name).exit_code == -signal.SIGKILL
        stack.restart(name)
        assert stack.urls == [url, second_url]
        assert _create(stack).status_code == 201
    assert _create(stack, second_url).status_code == 201


def test_the_record_survives_every_process_and_both_servers(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    execution_id = _create(stack).json()["id"]

    for name in ("server", "nats", "valkey"):
        stack.kill(name)
    for name in ("nats", "valkey", "server"):
        stack.restart(name)

    def is_back() -> bool:
        headers = {"Authorization": f"Bearer {stack.api_key}"}
        answer = httpx.get(f"{stack.url}/v0/executions/{execution_id}", headers=headers, trust_env=False, timeout=30)
        return answer.status_code == 200

    assert wait_until(is_back, "the execution to be there again", deadline_seconds=20)


def test_a_stopped_stack_leaves_nothing_behind() -> None:
    stack = Stack.start(processes="apart")
    pids = [process.pid for process in stack.processes.values()] + [stack.nats.pid, stack.valkey.pid]
    stopped = [process.log_path for process in stack.processes.values()]
    assert all(path.exists() for path in stopped)

    stack.stop()

    assert not any(_exists(pid) for pid in pids)
    assert not stack.folder.exists()


def test_a_stack_that_cannot_start_shows_why_and_leaves_nothing_behind() -> None:
    with pytest.raises(AssertionError, match=r"ended with 2 during its start:(.|\n)*STEPWELL_SHARDS=no") as caught:
        Stack.start(settings={"STEPWELL_SHARDS": "no"})

    assert "cannot be used" in str(caught.value)


def test_what_one_test_logs_is_told_from_what_was_logged_before(stack: Stack) -> None:
    _append(stack, "a line before the test\n")
    stack.mark_logs()
    _append(stack, "a line during the test\n")

    tails = stack.log_tails()

    assert "a line during the test" in tails
    assert "a line before the test" not in tails


def _append(stack: Stack, line: str) -> None:
    with stack.process("server").log_path.open("a") as log:
        log.write(line)
