"""Requests to a door, and what to tell a person when one fails. A redirect is never followed: it would take the key."""

from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from schemas.http import ErrorEnvelope

DEFAULT_URL = "http://localhost:8080"
REQUEST_SECONDS_MAX = 35.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
PAGES_MAX = 1_000
EXIT_REFUSED = 1
EXIT_UNUSABLE = 2
_PAGE_LIMIT = 1000
_NEXT_CURSOR = "rebuno-next-cursor"

T = TypeVar("T")


class CommandFailed(Exception):
    """A command ends without having done what it was to do. The message says why, and what to do about it."""

    def __init__(self, message: str, *, code: int = EXIT_REFUSED) -> None:
        super().__init__(message)
        self.code = code


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class DoorCalls:
    """One door, by its URL and a key; without a key only a door of `stepwell dev` answers."""

    def __init__(self, url: str, key: str) -> None:
        """Raises CommandFailed for a URL or a key that cannot be sent to."""
        address = _address(url)
        if address is None:
            raise CommandFailed(f"{url!r} is no address of a door, such as {DEFAULT_URL}", code=EXIT_UNUSABLE)
        if not key.isascii() or not key.isprintable() or " " in key:
            raise CommandFailed("the key has characters that no key has", code=EXIT_UNUSABLE)
        self._url = f"{address.scheme}://{address.netloc}"
        self._prefix = address.path.rstrip("/")
        self._connect = partial(_connection, address)
        self._key = key

    def get(self, path: str, kind: type[T]) -> T:
        return self._decoded(self._call("GET", path), kind)

    def pages(self, path: str, kind: type[T], **query: str) -> list[T]:
        """Return every item of a list, page by page."""
        found: list[T] = []
        asked = {name: value for name, value in query.items() if value} | {"limit": str(_PAGE_LIMIT)}
        for _ in range(PAGES_MAX):
            answer = self._call("GET", f"{path}?{urlencode(asked)}")
            found += self._decoded(answer, list[kind])
            if _NEXT_CURSOR not in answer.headers:
                return found
            asked["cursor"] = answer.headers[_NEXT_CURSOR]
        raise CommandFailed(f"the list has more than {PAGES_MAX} pages")

    def post(self, path: str, body: object, kind: type[T]) -> tuple[T, bool]:
        """Return the answer, and whether what it shows was made by this very request."""
        answer = self._call("POST", path, msgspec.json.encode(body))
        return self._decoded(answer, kind), answer.status == 201

    def send(self, method: str, path: str, body: object = None) -> None:
        """Send what is answered without a body."""
        self._call(method, path, b"" if body is None else msgspec.json.encode(body))

    def _call(self, method: str, path: str, body: bytes = b"") -> _Answer:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        connection = self._connect()
        try:
            connection.request(method, self._prefix + path, body=body or None, headers=headers)
            response = connection.getresponse()
            raw = response.read(ANSWER_BYTES_MAX)
        except (OSError, HTTPException) as error:
            raise CommandFailed(
                f"no door answers at {self._url} ({error or type(error).__name__}): start one, or name where it is "
                "with --url or STEPWELL_URL",
                code=EXIT_UNUSABLE,
            ) from error
        finally:
            connection.close()
        named = {name.lower(): value for name, value in response.getheaders()}
        answer = _Answer(status=response.status, headers=named, body=raw)
        if not 200 <= answer.status < 300:
            raise CommandFailed(self._refusal(answer))
        return answer

    def _decoded(self, answer: _Answer, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except msgspec.MsgspecError as error:
            raise CommandFailed(self._no_door(answer), code=EXIT_UNUSABLE) from error

    def _refusal(self, answer: _Answer) -> str:
        try:
            envelope = msgspec.json.decode(answer.body, type=ErrorEnvelope)
        except msgspec.MsgspecError:
            return self._no_door(answer)
        match answer.status:
            case 401 if self._key:
                return "the door does not take this key: it is wrong, revoked or expired, or another door's"
            case 401:
                return "the door wants a key: set STEPWELL_API_KEY, or give one with --key"
            case 403:
                return f"{envelope.message}: the command needs another key, or this one more scopes"
            case 504:
                return "the door does not know whether it was done: look at the list before doing it again"
            case 503 | 429:
                return f"not done: {envelope.message}; try again in {answer.headers.get('retry-after', '1')} s"
            case _:
                return _placed(envelope)

    def _no_door(self, answer: _Answer) -> str:
        return f"what answers at {self._url} (status {answer.status}) does not speak like a Stepwell door: see --url"


def segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")


def _placed(envelope: ErrorEnvelope) -> str:
    """Return the message behind the place that it is about."""
    details = {} if isinstance(envelope.details, msgspec.UnsetType) else envelope.details
    places = [f"line {details['line']}"] if "line" in details else []
    places += [str(details[name]) for name in ("field", "path") if details.get(name)]
    return ": ".join([*places, envelope.message])


def _address(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    is_plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    return parts if is_usable and is_plain and parts.scheme in ("http", "https") else None


def _connection(address: SplitResult) -> HTTPConnection:
    kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
    return kind(address.hostname or "", address.port, timeout=REQUEST_SECONDS_MAX)
