"""Which executions a list query means: bounds on ids, which carry their time, and the exact test on the header."""

from kernel.ports import ExecutionQuery
from kernel.view.limits import CREATED_SLACK_MS
from schemas.records import Header

_LOWEST = "-"
_HIGHEST = "+"


def created_range(query: ExecutionQuery) -> tuple[str, str]:
    """Return the highest and the lowest bound, as the lexicographic commands spell them.

    They are wider than the times asked for, because an id is drawn shortly before or after `created_at`.
    """
    lowest = _LOWEST
    if query.created_after:
        lowest = f"[{_id_start(query.created_after // 1000 - CREATED_SLACK_MS)}"
    highest = query.before_id
    if query.created_before:
        by_time = _id_start(query.created_before // 1000 + CREATED_SLACK_MS + 1)
        highest = min(highest, by_time) if highest else by_time
    return f"({highest}" if highest else _HIGHEST, lowest


def is_match(query: ExecutionQuery, header: Header) -> bool:
    """Whether the execution is asked for: `created_after` is inclusive, `created_before` and `before_id` are not."""
    return (
        (not query.agent_id or header.agent_id == query.agent_id)
        and (not query.status or header.status == query.status)
        and (not query.created_after or header.created_at >= query.created_after)
        and (not query.created_before or header.created_at < query.created_before)
        and (not query.before_id or header.execution_id < query.before_id)
    )


def _id_start(unix_ms: int) -> str:
    digits = f"{max(0, unix_ms):012x}"
    return f"{digits[:8]}-{digits[8:]}"
