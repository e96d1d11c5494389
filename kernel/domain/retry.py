"""How long a dispatch waits after a failed delivery. Integers only, so that every fold computes the same time."""

from datetime import UTC
from email.utils import parsedate_to_datetime

RETRY_AFTER_MS_MAX = 60_000
JITTER_PERMILLE_MAX = 250
_DOUBLINGS_MAX = 62
"""Beyond it every limit is reached, and the product need not grow further."""
_SECONDS_DIGITS_MAX = 18


def retry_wait_ms(*, tries: int, base_ms: int, max_ms: int, jitter_permille: int, retry_after_ms: int) -> int:
    """Return the milliseconds between the `tries`-th consecutive failure (from 1) and the next try.

    The agent's own wish (`retry_after_ms`, 0 without one) raises the wait, never beyond a minute.
    """
    doubled_ms = min(base_ms << min(tries - 1, _DOUBLINGS_MAX), max_ms)
    return max(doubled_ms * (1000 + jitter_permille) // 1000, min(retry_after_ms, RETRY_AFTER_MS_MAX))


def parse_retry_after(value: str, now_seconds: int) -> int:
    """Return the milliseconds that a Retry-After header asks for: 0 to one minute, 0 for what cannot be read."""
    text = value.strip(" \t")
    if text.isascii() and text.isdigit():
        seconds = int(text.lstrip("0")[:_SECONDS_DIGITS_MAX] or "0")
    else:
        seconds = _seconds_until(text, now_seconds)
    return min(max(seconds, 0) * 1000, RETRY_AFTER_MS_MAX)


def _seconds_until(http_date: str, now_seconds: int) -> int:
    try:
        moment = parsedate_to_datetime(http_date)
        # A date without a zone means UTC: HTTP knows no other.
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) - now_seconds
    except (ValueError, OverflowError, IndexError, TypeError):
        # What the parser raises on garbage; a header from outside must never stop a delivery's outcome.
        return 0
