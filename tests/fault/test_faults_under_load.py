"""Processes and servers die and stand still while agents work: what was promised to anybody holds, and is read back.

With the faults of storage and network this is the short form of `python -m tests.fault.soak`, which goes on for half an
hour and knows more kinds.
"""

from tests.fault.faulty_stack import FaultyStack
from tests.fault.run import play_once

QUICK = (
    "kill door",
    "kill projector",
    "kill dispatcher",
    "kill nats",
    "kill valkey",
    "stall projector",
)


async def test_what_was_promised_holds_whatever_dies_meanwhile(stack: FaultyStack, seed: int) -> None:
    await play_once(stack, seed, QUICK)
