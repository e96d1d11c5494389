"""A view that is dropped while agents work, again and again."""

from tests.fault.faulty_stack import FaultyStack
from tests.fault.run import run

LANES = 6


async def test_k111_a_view_that_is_dropped_and_rebuilt_under_load_reads_the_same_and_runs_nothing_twice(
    stack: FaultyStack, seed: int
) -> None:
    verdict = await run(stack, seed, iter(["lose the view"] * 4), lanes=LANES, sleepers=1)

    assert not verdict.findings, str(verdict)
    assert verdict.effects > LANES
