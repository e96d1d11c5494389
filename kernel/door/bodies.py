"""Typed reading of requests: path, lease, Idempotency-Key, the members of a body. Whatever is wrong is `Invalid`.

Nothing here asks the log, the view or a clock, and no message repeats what was sent.
"""

from collections.abc import Mapping
from typing import TypeVar

from msgspec import UNSET, Raw, UnsetType

from kernel.domain.errors import Invalid
from kernel.domain.identity import body_digest, request_key_digest
from kernel.domain.json_values import Document, Value, error_record, items, members, read_object
from kernel.domain.usage import TOKENS_MAX, recorded_usage
from kernel.door.auth import ATTEMPT, DISPATCH_ID
from kernel.door.exchange import Request
from schemas.bodies import NULL, Usage
from schemas.entries import Idempotency, Lease, Outcome, RequestKey, StepKind
from schemas.ids import STEP_ID, parse_uuid

Word = TypeVar("Word", StepKind, Idempotency)

KINDS: tuple[StepKind, ...] = ("tool_call", "llm_call", "local")
IDEMPOTENCIES: tuple[Idempotency, ...] = ("safe_to_retry", "at_most_once")

TARGET_BYTES_MAX = 1024
SETTLE_ITEMS_MAX = 256
KEY_CHARS_MAX = 255
ATTEMPT_MAX = 999_999_999
"""Larger numbers are read as this one: no attempt ever has it, so the lease check refuses them."""
_ATTEMPT_DIGITS_MAX = 9

NO_STEP_ID = "0" * 64
"""Stands for every text that is no step id, and names no step."""

_EMPTY = Document(value=Value({}), fields={})
ERROR_LENIENT = frozenset({"error"})
SETTLE_LENIENT = frozenset({"settle[].error"})
ENDING_LENIENT = ERROR_LENIENT | SETTLE_LENIENT
NOT_LENIENT: frozenset[str] = frozenset()


# ---------------------------------------------------------------- path and headers


def execution_id_of(request: Request) -> str:
    """Return the execution id in the path, lower case."""
    return _id_of(request, "execution_id")


def approval_id_of(request: Request) -> str:
    """Return the approval id in the path, lower case."""
    return _id_of(request, "approval_id")


def _id_of(request: Request, name: str) -> str:
    found = parse_uuid(request.names[0].decode("latin-1"))
    if found is None:
        raise Invalid("not a dashed UUID", path=name)
    return found


def step_id_of(request: Request) -> str:
    """Return the step id in the path; any text that is none becomes an id that no step has."""
    return known_step_id(request.names[1].decode("latin-1"))


def known_step_id(text: str) -> str:
    return text if STEP_ID.fullmatch(text) else NO_STEP_ID


def lease_of(request: Request) -> Lease:
    """Return the lease headers."""
    dispatch_id = parse_uuid(request.headers.get(DISPATCH_ID, b"").decode("latin-1"))
    if dispatch_id is None:
        raise Invalid("missing, or not a dashed UUID", path="Rebuno-Dispatch-Id")
    attempt = request.headers.get(ATTEMPT, b"")
    if not attempt.isdigit():
        raise Invalid("missing, or not a decimal integer", path="Rebuno-Dispatch-Attempt")
    significant = attempt.lstrip(b"0")
    if not significant:
        raise Invalid("attempts start at 1", path="Rebuno-Dispatch-Attempt")
    number = int(significant) if len(significant) <= _ATTEMPT_DIGITS_MAX else ATTEMPT_MAX
    return Lease(dispatch_id=dispatch_id, attempt=number)


def header_key(request: Request) -> str | None:
    """Return the Idempotency-Key header, None without one."""
    key = request.headers.get(b"idempotency-key")
    if key is None:
        return None
    # Of ASCII, only U+0020 is printable and invisible.
    if not key.isascii() or not key.decode().isprintable() or b" " in key or not 1 <= len(key) <= KEY_CHARS_MAX:
        raise Invalid(f"1 to {KEY_CHARS_MAX} visible ASCII characters", path="Idempotency-Key")
    return key.decode()


def request_key(request: Request, document: Document, path: str) -> RequestKey | None:
    """Return the digests that the fold judges a repeat by; `path` is the route's with its ids in their one spelling."""
    key = header_key(request)
    if key is None:
        return None
    digest = body_digest(request.route.method, path, document.value.canonical)
    return RequestKey(key=request_key_digest(key), request=digest)


# ---------------------------------------------------------------- bodies


def read_body_object(request: Request, *, lenient: frozenset[str] = NOT_LENIENT, is_optional: bool = False) -> Document:
    """Return the body as one JSON object; `is_optional`: no bytes at all count as `{}`."""
    encoding = request.headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise Invalid("no content encoding but identity is read", path="Content-Encoding")
    if is_optional and not request.body:
        return _EMPTY
    return read_object(request.body, lenient=lenient)


def text(fields: Mapping[str, Value], name: str, *, path: str = "") -> str:
    """Return a string member that has to be there; it may be empty."""
    value = fields.get(name)
    if value is None or not isinstance(value.plain, str):
        raise Invalid("a string is required", path=path or name)
    return value.plain


def optional_text(fields: Mapping[str, Value], name: str) -> str:
    """Return a string member, `""` where it is absent."""
    return text(fields, name) if name in fields else ""


def choice(fields: Mapping[str, Value], name: str, words: tuple[Word, ...]) -> Word:
    """Return the member, which has to be one of the words."""
    sent = text(fields, name)
    for word in words:
        if word == sent:
            return word
    raise Invalid(f"one of: {', '.join(words)}", path=name)


def optional_choice(fields: Mapping[str, Value], name: str, words: tuple[Word, ...]) -> Word:
    """Return the member, the first of the words where it is absent or empty."""
    return choice(fields, name, words) if optional_text(fields, name) else words[0]


def raw_or_null(fields: Mapping[str, Value], name: str) -> Raw:
    """Return the record form of a member of any type; absent is null."""
    value = fields.get(name)
    return Raw(NULL if value is None else value.raw)


def target_of(fields: Mapping[str, Value]) -> str:
    target = text(fields, "target")
    if len(target) * 4 > TARGET_BYTES_MAX and len(target.encode()) > TARGET_BYTES_MAX:
        raise Invalid(f"longer than {TARGET_BYTES_MAX} bytes", path="target")
    return target


def error_of_step(fields: Mapping[str, Value], *, path: str = "error") -> Raw:
    """Return a step's error as it is recorded; absent and null are refused."""
    value = fields.get("error")
    if value is None or value.plain is None:
        raise Invalid("an error that is not null is required", path=path)
    return Raw(error_record(value))


def settle_of(fields: Mapping[str, Value]) -> tuple[Outcome, ...]:
    """Return the outcomes that travel with this request."""
    value = fields.get("settle")
    if value is None:
        return ()
    found = items(value)
    if len(found) > SETTLE_ITEMS_MAX:
        raise Invalid(f"more than {SETTLE_ITEMS_MAX} items", path="settle")
    return tuple(_outcome(item) for item in found)


def _outcome(item: Value) -> Outcome:
    fields = members(item)
    step_id = known_step_id(text(fields, "step_id", path=f"{item.path}.step_id"))
    result, error = fields.get("result"), fields.get("error")
    if (result is None) == (error is None):
        raise Invalid("exactly one of result and error is required", path=item.path)
    usage = usage_of(fields, path=f"{item.path}.usage")
    if error is not None:
        return Outcome(step_id=step_id, error=error_of_step(fields, path=error.path), usage=usage)
    return Outcome(
        step_id=step_id,
        result=UNSET if result is None else Raw(result.raw),
        usage=usage,
        read_usage=read_usage_of(fields),
    )


_COUNTS = ("input_tokens", "output_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")


def usage_of(fields: Mapping[str, Value], *, path: str = "usage") -> Usage | None:
    """Return the token counts sent with an outcome; unknown counts are 0, and the total is what it is made of."""
    value = fields.get("usage")
    if value is None or value.plain is None:
        return None
    found = members(value)
    counts = {name: _count(found.get(name), path=f"{path}.{name}") for name in _COUNTS}
    total = counts["input_tokens"] + counts["output_tokens"] or counts["total_tokens"]
    return Usage(**(counts | {"total_tokens": total}))


def read_usage_of(fields: Mapping[str, Value]) -> Usage | UnsetType:
    """Return the token counts that a result itself holds, where none were sent with it."""
    sent, result = fields.get("usage"), fields.get("result")
    if result is None or (sent is not None and sent.plain is not None):
        return UNSET
    return recorded_usage(result.plain) or UNSET


def _count(value: Value | None, *, path: str) -> int:
    if value is None or value.plain is None:
        return 0
    return integer(value, low=0, high=TOKENS_MAX, path=path)


def integer(value: Value, *, low: int, high: int, path: str = "") -> int:
    """Return an integer within bounds."""
    number = value.plain
    # True and False are integers in Python alone.
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise Invalid(f"an integer from {low} to {high} is required", path=path or value.path)
    return number


def boolean(value: Value) -> bool:
    if not isinstance(value.plain, bool):
        raise Invalid("true or false is required", path=value.path)
    return value.plain


# ---------------------------------------------------------------- create

POSTPONED = ("session", "concurrency_key", "parent_execution_id", "spawned_by")
"""Members of create that have a meaning, but not yet."""


def refuse_postponed(fields: Mapping[str, Value]) -> None:
    for name in POSTPONED:
        value = fields.get(name)
        if value is not None and value.plain not in (None, "", {}):
            raise Invalid("not supported yet", path=name)


def create_key(request: Request, document: Document) -> tuple[str | None, str]:
    """Return the key of a create and what the Execution echoes of it: the body's member alone."""
    sent = header_key(request)
    echoed = optional_text(document.fields, "idempotency_key")
    if len(echoed) > KEY_CHARS_MAX:
        raise Invalid(f"longer than {KEY_CHARS_MAX} characters", path="idempotency_key")
    if sent is not None and echoed and sent != echoed:
        raise Invalid("differs from the Idempotency-Key header", path="idempotency_key")
    return sent or echoed or None, echoed


def create_request_key(key: str, document: Document, path: str) -> RequestKey:
    """Return the digests of a create's key. Where the key stood makes no other request of it."""
    digest = body_digest("POST", path, document.canonical_without("idempotency_key"))
    return RequestKey(key=request_key_digest(key), request=digest)
