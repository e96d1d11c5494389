"""Faults of many kinds while agents work: whatever was promised to anybody holds, and is read back.

This is the short form of `python -m tests.fault.soak`, which goes on for half an hour and knows more kinds.
"""

import random

from tests.fault.faulty_stack import FaultyStack
from tests.fault.run import run

LANES = 6
SLEEPERS = 2
QUICK = (
    "kill door",
    "kill projector",
    "kill dispatcher",
    "kill nats",
    "kill valkey",
    "stall projector",
    "forget the scripts",
    "tear the scripts",
    "share a shard",
    "take the view back",
    "fill the log",
    "cut nats",
    "cut valkey",
    "step the clock of the door",
)


async def test_what_was_promised_holds_whatever_breaks_meanwhile(stack: FaultyStack, seed: int) -> None:
    names = random.Random(seed).sample(QUICK, len(QUICK))

    verdict = await run(stack, seed, iter(names), lanes=LANES, sleepers=SLEEPERS)

    assert not verdict.findings, str(verdict)
    assert verdict.faults == tuple(names)
    assert verdict.effects > LANES
