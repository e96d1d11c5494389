"""Logging of a process: one line an event on standard error, and no secret in any of them."""

import logging
import sys
import time
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from kernel.settings import Settings

_SECRET_CHARS_MIN = 4
"""A shorter text is a word that occurs everywhere, not a secret that could be told."""


def set_up_logging(settings: Settings) -> None:
    """Send everything that is logged to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(secrets_of(settings)))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    # The drivers report what our own adapters report too, in their words and with their addresses.
    for noisy in ("nats", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def secrets_of(settings: Settings) -> tuple[str, ...]:
    """Return every text of the settings that must not be told, passwords inside addresses among them."""
    found = [settings.master_key, settings.api_key]
    for url in (*settings.nats_url.split(","), settings.redis_url):
        found += _secrets_in(url)
    return tuple(secret for secret in found if len(secret) >= _SECRET_CHARS_MIN)


class OneLine(logging.Formatter):
    """Time in UTC, level, logger, event; a traceback goes on the same line, its lines parted by bars.

    Whatever was logged, by us or a driver, the known secrets are cut out of it: no careful caller is relied on.
    """

    converter = time.gmtime

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self._secrets = tuple(sorted(set(secrets), key=len, reverse=True))

    def format(self, record: logging.LogRecord) -> str:
        text = " | ".join(line.strip() for line in super().format(record).splitlines() if line.strip())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _secrets_in(url: str) -> list[str]:
    """The user info of an address: a password, or the token that stands in its place."""
    try:
        parts = urlsplit(url.strip())
        found = [parts.password or "", "" if parts.password else parts.username or ""]
    except ValueError:
        return [url]
    return [*found, *(unquote(each) for each in found)]
