"""JSON values of steps: what an agent hands in becomes JSON, or is refused before anything is sent.

A value that was recorded comes back as JSON reads it, so live and replayed runs see equal objects: a tuple is a list in
both, a model is an object.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

RECORDED_BYTES_MAX = 32 * 1024 * 1024 - 1024
"""Of one value: what a request to the kernel may have, less what stands around the value."""


def encode(value: object, *, what: str) -> bytes:
    """Return the JSON of a value. Raises TypeError naming the place in `what` that JSON cannot carry."""
    try:
        return _encoder.encode(value).encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair: JSON can name it, UTF-8 cannot.
        return _ascii_encoder.encode(value).encode()
    except RecursionError as error:
        raise TypeError(f"{what}: nested too deep, or within itself") from error
    except (TypeError, ValueError) as error:
        if "Circular" in str(error):
            raise TypeError(f"{what}: a value is within itself") from error
        raise TypeError(f"{_culprit(value, what) or what}: {error}") from error


class TooLarge(ValueError):
    """A value that is too large for the record."""


def encode_recorded(value: object, *, what: str) -> bytes:
    """Return the JSON of a value that is to be recorded. Raises as `encode` does, and TooLarge."""
    raw = encode(value, what=what)
    if len(raw) > RECORDED_BYTES_MAX:
        raise TooLarge(f"{what}: {len(raw)} bytes of JSON, where {RECORDED_BYTES_MAX} are the most")
    return raw


def decode(raw: bytes) -> Any:
    """Return the value of JSON text."""
    return json.loads(raw)


def read(raw: bytes, kind: type[T]) -> T:
    """Return an answer of the kernel as an object. Values inside of it are as `decode` gives them."""
    return msgspec.convert(json.loads(raw), kind)


def _plain(value: object) -> object:
    """Return what stands for a model in JSON. Raises TypeError for everything that is no model."""
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return cast("Any", value).model_dump(mode="json")
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    model = cast("Any", value)
    if dataclasses.is_dataclass(model) and not isinstance(value, type):
        return {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    raise TypeError(f"{type(value).__name__} is no JSON value")


# `json.dumps` would make an encoder for every value.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
_ascii_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain)


def _culprit(value: object, path: str) -> str:
    """Return the path of the innermost part that cannot be encoded; empty where all can."""
    for name, part in _parts(value):
        found = _culprit(part, f"{path}{name}")
        if found:
            return found
    return "" if _is_json(value) else path


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, part in cast("dict[object, object]", value).items():
            yield (f".{name}" if isinstance(name, str) else f"[{name!r}]"), part
    elif isinstance(value, list | tuple):
        for at, part in enumerate(cast("list[object]", value)):
            yield f"[{at}]", part


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
