"""What a gateway is told: its kernel, its key, and the providers that it forwards to."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from stepwell.llm.scrubbing import Scrub, scrubbing

IDLE_SECONDS = 600.0

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Upstream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider. A request goes to the one that its path begins with the name of, else to that of the longest path."""

    url: str
    """Scheme, host and perhaps a path, in front of what is asked for."""
    paths: tuple[str, ...] = ()
    """Beginnings of the paths that go here."""
    key: str = ""
    """Sent in place of the caller's own; empty: the caller's passes through."""
    key_header: str = "authorization"
    """Where the key goes: `authorization` (as a bearer) or a header of its own, such as `x-api-key`."""
    headers: dict[str, str] = {}
    """Sent with every request, in place of the caller's."""
    idle_seconds: float = IDLE_SECONDS
    """How long it may take to answer, and then to send more of its answer."""


OPENAI = Upstream(url="https://api.openai.com", paths=("/v1",))
ANTHROPIC = Upstream(url="https://api.anthropic.com", paths=("/v1/messages", "/v1/complete"), key_header="x-api-key")
UPSTREAMS: Mapping[str, Upstream] = MappingProxyType({"openai": OPENAI, "anthropic": ANTHROPIC})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`api_key` is one of the kernel's with the scope `steps:delegate`."""

    base_url: str | None = None
    api_key: str = ""
    upstreams: Mapping[str, Upstream] = UPSTREAMS
    scrub: Scrub | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    upstreams: dict[str, Upstream] = {}
    scrub: tuple[str, ...] = ()
    """Regular expressions of what is not recorded."""


def settings_of(environment: Mapping[str, str], config: Path | None) -> Settings:
    """Return the settings of an environment and a file. Raises ValueError for what cannot be used, and says where."""
    file = _File() if config is None else _read(config, environment)
    return Settings(
        base_url=environment.get("REBUNO_URL") or None,
        api_key=environment.get("REBUNO_API_KEY", ""),
        upstreams=dict(UPSTREAMS) | file.upstreams,
        scrub=scrubbing(file.scrub) if file.scrub else None,
    )


def _read(path: Path, environment: Mapping[str, str]) -> _File:
    """Return what a TOML file says, its `${VARIABLES}` replaced."""
    try:
        found = tomllib.loads(path.read_text())
        # A pattern may well have what looks like a variable.
        patterns = {"scrub": found.pop("scrub")} if "scrub" in found else {}
        file = msgspec.convert(_expanded(found, environment) | patterns, _File)
        scrubbing(file.scrub)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    for name, upstream in file.upstreams.items():
        trouble = _trouble(name, upstream)
        if trouble:
            raise ValueError(f"{path}: upstreams.{name}: {trouble}")
    return file


def _trouble(name: str, upstream: Upstream) -> str:
    parts = urlsplit(upstream.url)
    if not _NAME.fullmatch(name) or name in ("v1", "d", "healthz"):
        return "a name is made of lower-case letters, digits, - and _, and is none of v1, d, healthz"
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        return f"url: {upstream.url!r} is no address: https://host is one"
    if not all(path.startswith("/") for path in upstream.paths):
        return "paths: each begins with /"
    if not all(_HEADER.fullmatch(header) for header in (upstream.key_header, *upstream.headers)):
        return "key_header, headers: letters, digits and - alone"
    if not 1 <= upstream.idle_seconds <= 3600:
        return "idle_seconds: from 1 to 3600"
    return ""


def _expanded(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(found[1], environment), value)
    if isinstance(value, dict):
        return {name: _expanded(each, environment) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_expanded(each, environment) for each in cast("list[Any]", value)]
    return value


def _variable(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise ValueError(f"${{{name}}} is not set")
    return environment[name]
