"""What the tests stand on is tested itself: waiting, leak checks, seeds."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.effects import append, read_lines
from tests.support.blocking import run_blocking
from tests.support.wait import NotInTime, loop_turns, wait_until, wait_until_async

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def answers() -> Iterator[str]:
    return iter(["", "", "third"])


def test_waiting_ends_with_the_first_true_value(answers: Iterator[str]) -> None:
    assert wait_until(lambda: next(answers), "a word") == "third"


def test_waiting_in_vain_says_for_what_how_long_and_what_was_seen() -> None:
    with pytest.raises(NotInTime, match=r"^waited 0\.01 s for the moon; the last look gave \[\]$"):
        wait_until(list[int], "the moon", deadline_seconds=0.01)


def test_only_the_named_exceptions_mean_not_yet() -> None:
    def refuse() -> bool:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(NotInTime, match="nobody there"):
        wait_until(refuse, "a server", deadline_seconds=0.01, retry_on=OSError)
    with pytest.raises(ConnectionRefusedError):
        wait_until(refuse, "a server")


async def test_the_blocking_wait_refuses_to_block_an_event_loop() -> None:
    with pytest.raises(RuntimeError, match="wait_until_async"):
        wait_until(lambda: True, "nothing")


async def test_the_asynchronous_wait_takes_functions_and_coroutine_functions(answers: Iterator[str]) -> None:
    async def ask() -> str:
        return next(answers)

    assert await wait_until_async(ask, "a word") == "third"
    assert await wait_until_async(lambda: 1, "a number") == 1


async def test_a_condition_that_hangs_is_cancelled_at_the_deadline() -> None:
    hanging = asyncio.Event()
    with pytest.raises(NotInTime, match="the end of time"):
        await wait_until_async(hanging.wait, "the end of time", deadline_seconds=0.01)


async def test_a_time_out_of_the_condition_itself_is_not_taken_for_the_deadline() -> None:
    async def refuse() -> bool:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await wait_until_async(refuse, "an answer")


async def test_loop_turns_let_ready_tasks_run() -> None:
    done: list[int] = []

    async def work() -> None:
        await loop_turns(3)
        done.append(1)

    task = asyncio.create_task(work())
    await loop_turns()
    assert done == [1]
    await task


async def test_a_coroutine_can_be_run_to_its_end_under_a_running_loop() -> None:
    async def work() -> int:
        await loop_turns()
        return 7

    assert run_blocking(work()) == 7


def test_a_test_that_leaves_a_task_behind_fails_and_names_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import asyncio
        import pytest_asyncio

        kept = []

        @pytest_asyncio.fixture
        async def tidy():
            task = asyncio.create_task(asyncio.Event().wait())
            yield
            task.cancel()

        async def forgotten():
            await asyncio.Event().wait()

        async def test_leaks():
            kept.append(asyncio.create_task(forgotten()))

        async def test_ends_soon():
            kept.append(asyncio.create_task(asyncio.sleep(0.05)))

        async def test_cleans_up(tidy):
            pass

        def test_without_a_loop():
            pass
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = pytester.runpytest_subprocess("-p", "tests.support.leaks", "-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*the test left 1 tasks running:*", "*forgotten*", "ERROR *::test_leaks*"])


def test_a_failing_random_test_shows_its_seed_and_takes_it_back(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_random(seed):\n    assert seed == -1\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("STEPWELL_TEST_SEED", "1234")
    result = pytester.runpytest_subprocess("-p", "tests.support.seeds")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*STEPWELL_TEST_SEED=1234*"])
    monkeypatch.delenv("STEPWELL_TEST_SEED")
    result = pytester.runpytest_subprocess("-p", "tests.support.seeds")
    result.stdout.re_match_lines([r".*STEPWELL_TEST_SEED=\d+"])


# ---------------------------------------------------------------- files of processes that are killed


def test_a_line_that_a_killed_process_has_half_written_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, [1, "whole"])
    with path.open("ab") as file:
        file.write(path.read_bytes()[:-3])
    append(path, [2, "whole"])

    assert read_lines(path, list[int | str]) == [[1, "whole"], [2, "whole"]]
