"""Which executions and approvals a list query means: bounds on ids, which sort by time, and the exact test."""

from kernel.ports import ApprovalQuery, ExecutionQuery, ListedApproval
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


def approval_range(query: ApprovalQuery) -> tuple[str, str]:
    """Return the lowest and the highest bound on members of an index, as the lexicographic commands spell them.

    A member begins with its approval's id and a slash, and the character after the slash is 0.
    """
    lowest = f"[{query.after_id}0" if query.after_id else _LOWEST
    if not query.approval_id:
        return lowest, _HIGHEST
    return max(lowest, f"[{query.approval_id}/"), f"({query.approval_id}0"


def is_approval_match(query: ApprovalQuery, found: ListedApproval) -> bool:
    """Whether the approval is asked for: `after_id` is exclusive."""
    return (
        (not query.approval_id or found.record.approval_id == query.approval_id)
        and (not query.status or found.record.status == query.status)
        and (not query.agent_id or found.agent_id == query.agent_id)
        and (not query.execution_id or found.execution_id == query.execution_id)
        and (not query.after_id or found.record.approval_id > query.after_id)
    )


def _id_start(unix_ms: int) -> str:
    digits = f"{max(0, unix_ms):012x}"
    return f"{digits[:8]}-{digits[8:]}"
