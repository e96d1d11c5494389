"""Waking the readers that wait for an execution."""

import msgspec

from kernel.door.changes import Changes
from kernel.log.memory import MemoryWakes
from kernel.ports import changes_channel
from tests.support.wait import loop_turns

ONE, OTHER = "0199aaaa-0000-7000-8000-0000000000ff", "0199aaaa-0000-7000-8000-0000000000fe"


async def test_those_who_wait_for_a_changed_execution_are_woken_and_nobody_else() -> None:
    changes, wakes = Changes(2), MemoryWakes()
    subscriptions = await changes.listen(wakes)
    with changes.watch(1, ONE) as first, changes.watch(1, ONE) as second, changes.watch(1, OTHER) as other:
        with changes.watch(0, ONE) as elsewhere:
            wakes.tell(changes_channel(1), msgspec.msgpack.encode(["unknown", ONE]))
            await loop_turns()
            woken = [event.is_set() for event in (first, second, other, elsewhere)]
        assert woken == [True, True, False, False]
        first.clear()
        wakes.tell(changes_channel(1), b"\xc1")
        wakes.tell(changes_channel(1), msgspec.msgpack.encode([1]))
        await loop_turns()
        assert not first.is_set()
    # Whoever has left is not remembered.
    wakes.tell(changes_channel(1), msgspec.msgpack.encode([ONE]))
    await loop_turns()
    assert not first.is_set()
    for subscription in subscriptions:
        await subscription.close()
