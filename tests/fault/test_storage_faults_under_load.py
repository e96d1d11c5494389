"""Log, view, network and clocks go wrong while agents work: what was promised to anybody holds, and is read back."""

from tests.fault.faulty_stack import FaultyStack
from tests.fault.run import play_once

QUICK = (
    "forget the scripts",
    "tear the scripts",
    "share a shard",
    "take the view back",
    "fill the log",
    "cut nats",
    "cut valkey",
    "step the clock of the door",
)


async def test_what_was_promised_holds_whatever_is_lost_meanwhile(stack: FaultyStack, seed: int) -> None:
    await play_once(stack, seed, QUICK)
