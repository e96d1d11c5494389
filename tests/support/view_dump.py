"""Everything the view keeps in Redis that a rebuild has to bring back, read key by key."""

from typing import Any

import redis

ONLY_IN_REDIS = (
    "owner",
    "epoch",
    "floor",
    "doors",
    "polled",
    "silent",
    "marks",
    "answers",
    "slices",
    "rebuilding",
    "dirty",
)
"""Per shard: running lease times and their floor, owners, signs of life, stored answers."""
_OF_NO_SHARD = ("{stepwell}", "{t:")
"""Living projectors; token buckets and webhook slots of tenants."""


def view_dump(redis_url: str) -> dict[str, Any]:
    """Return the contents by key, less what only Redis knows; of a lease only that it runs, not until when."""
    dump: dict[str, Any] = {}
    with redis.Redis.from_url(redis_url) as client:
        for key in sorted(client.scan_iter(count=1000)):
            name = key.decode()
            if name.startswith(_OF_NO_SHARD) or name.split(":")[1] in ONLY_IN_REDIS:
                continue
            if (contents := _contents(client, key, is_due=name.endswith(":due"))) is not None:
                dump[name] = contents
    return dump


def _contents(client: Any, key: bytes, *, is_due: bool) -> object:
    kind = client.type(key)
    match kind:
        case b"hash":
            return client.hgetall(key)
        case b"zset":
            members = client.zrange(key, 0, -1, withscores=True)
            return {member: None if is_due and member.startswith(b"lease/") else score for member, score in members}
        case b"set":
            return client.smembers(key)
        case b"string":
            return client.get(key)
        case b"none":
            # It went after it was listed: the view does not stand still yet.
            return None
        case _:
            raise AssertionError(f"the view has a key of the type {kind!r}")
