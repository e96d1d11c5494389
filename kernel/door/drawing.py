"""Fresh ids that have to lie in a given shard."""

from kernel.domain.identity import shard_of
from schemas.ids import new_uuid7


def new_id_in(shard: int, shards: int) -> str:
    """Return a fresh UUIDv7 of this shard: one in so many draws is."""
    while True:
        drawn = new_uuid7()
        if shard_of(drawn, shards) == shard:
            return drawn


def new_approval_id(execution_id: str, shards: int) -> str:
    """Return a fresh id for an approval of an execution: of the same shard, so that the id alone leads there."""
    return new_id_in(shard_of(execution_id, shards), shards)
