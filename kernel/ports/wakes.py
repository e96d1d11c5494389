"""Wake-ups as a port, and the channels they come by."""

from collections.abc import Callable
from typing import Protocol


class Subscription(Protocol):
    async def close(self) -> None: ...


class Wakes(Protocol):
    """Hints over NATS core: may be lost, repeated or late; nothing rests on them but speed."""

    def tell(self, channel: str, payload: bytes) -> None:
        """Send without waiting; silently nothing when disconnected."""
        ...

    async def listen(self, channel: str, heard: Callable[[bytes], None], *, group: str = "") -> Subscription:
        """Call `heard` on the loop for every message; of listeners that share a group only one is called."""
        ...


def answers_channel(process: str) -> str:
    """Channel on which a process hears the answers to its entries."""
    return f"answers.{process}"


def due_channel(shard: int) -> str:
    """Channel on which dispatchers hear that a shard has work due now."""
    return f"due.{shard}"


def deltas_channel(execution_id: str) -> str:
    """Channel on which doors hear the live deltas of one execution, each a server-sent event as it goes out."""
    return f"deltas.{execution_id}"


def changes_channel(shard: int) -> str:
    """Channel on which waiting readers hear which executions of a shard have new events.

    The payload is a msgpack list of execution ids, one message a batch.
    """
    return f"changes.{shard}"
