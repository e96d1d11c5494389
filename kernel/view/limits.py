"""Bounds and periods of the view, the same for every adapter. Redis alone looks at the connection bounds."""

import msgspec

SILENCE_MS_MAX = 5_000
"""Doors or dispatchers silent for longer than this are an outage of ours: leases are not expired for it."""

SLICE_MS = 30_000
"""Stored answers lie in slices of this much of their entry ids' own time."""

ANSWER_MS = 150_000
"""How long a slice lives after the last answer was put into it: a slice and two minutes."""

SPENT_KEPT_MS = 48 * 3600 * 1000
"""How long the counter of a daily quota is kept after it was last used: it is never asked for after its day."""

CREATED_SLACK_MS = 30_000
"""How far `created_at` may lie from the time inside the execution's id: ids are drawn within a request's budget."""


class ViewLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How RedisView may use its server."""

    exchanges_max: int = 1024
    """Requests under way at once, cancelled ones included until their replies have come."""
    connect_seconds: float = 2.0
    call_seconds: float = 5.0
    """One exchange from its request to its last reply; then the connection is ended. Also a wait for a place."""
    wipe_keys_max: int = 1000
    """Keys looked at in one step of a wipe, about; the server does nothing else meanwhile."""
    wipe_hold_ms: int = 2_000
    """How long a shard stays its owner's after a step of a wipe, at least."""
    list_chunk_max: int = 50
    """Headers read in one step of a list."""
    list_steps_max: int = 200
    script_loads_max: int = 3
    """How often a script is loaded for one call when the server keeps forgetting it."""


DEFAULT_LIMITS = ViewLimits()
