"""Settings from flags and environment: a flag beats the environment, and that beats the default.

What cannot be read stops the start with one line: the setting, its value (of secrets, never) and what it takes.
"""

import re
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_network
from typing import Literal

import msgspec

from kernel.domain.addresses import LOOPBACK_NETWORKS, Network
from kernel.domain.durations import duration_text, parse_duration
from kernel.domain.errors import Misconfigured
from kernel.settings import Settings
from schemas.ids import DEFAULT_TENANT

Mode = Literal["dev", "server"]
Need = Literal["storage", "master_key", "key"]

LEASE_SECONDS_MIN = 10.0
LEASE_SECONDS_ADVISED = 45.0
SHARDS_MAX = 256
MASTER_KEY_BYTES_MIN = 16
_DAY_SECONDS = 86_400.0

_OURS = "STEPWELL_"
# Read by the servers of deploy/, by the tests and by the commands that talk to a door, not by a server.
_OTHERS = re.compile(r"STEPWELL_(NATS_STORE|URL|TEST_.*)")


class Loaded(msgspec.Struct, frozen=True):
    """The settings, and what the one who starts the process should be told about them."""

    settings: Settings
    warnings: tuple[str, ...]


class _Option(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. `read` raises ValueError for a text that `takes` does not describe."""

    name: str = ""
    """Of the environment variable; empty where only the flag exists."""
    flag: str = ""
    read: Callable[[str], object]
    takes: str
    field: str = ""
    """Where it goes in Settings; empty for what is not built yet."""
    is_secret: bool = False

    def given(self, environment: Mapping[str, str], flags: Mapping[str, str]) -> tuple[str, str] | None:
        """The text and the name under which it was given."""
        if self.flag in flags:
            return flags[self.flag], self.flag
        text = environment.get(self.name)
        return (text, self.name) if text else None

    def value(self, text: str, shown_name: str) -> object:
        try:
            return self.read(text)
        except ValueError:
            shown = "" if self.is_secret else f"={text}"
            raise Misconfigured(f"{shown_name}{shown} cannot be used: it takes {self.takes}") from None


def load_settings(mode: Mode, environment: Mapping[str, str], flags: Mapping[str, str]) -> Loaded:
    """Return the settings of a process.

    `flags` are texts from the command line by flag, such as `--port`. A variable that is set and empty counts as
    absent. Raises Misconfigured.
    """
    values: dict[str, object] = {}
    warnings = [f"{name} is no setting and is ignored" for name in _unknown(environment)]
    for option in _OPTIONS:
        given = option.given(environment, flags)
        if given is None:
            continue
        values[option.field] = option.value(*given)
        if not option.field:
            warnings.append(f"{option.name} has no effect yet")
    values.pop("", None)
    _refuse_one_key_for_two(values)
    settings = Settings(mode=mode, **values)  # pyright: ignore[reportArgumentType] - each option reads its field's type
    if mode == "dev":
        ignored = [name for field, name in _STORAGE.items() if field in values]
        warnings += [f"{name} is ignored: `stepwell dev` starts its own servers" for name in ignored]
        settings = _adapted_to_dev(settings)
    if settings.lease_seconds < LEASE_SECONDS_ADVISED:
        warnings.append(
            f"STEPWELL_DISPATCH_LEASE_TIMEOUT={duration_text(settings.lease_seconds)} is below 45s: agents that "
            "heartbeat every 30 s, as the oldest clients do, may lose their lease"
        )
    return Loaded(settings=settings, warnings=tuple(warnings))


def _refuse_one_key_for_two(values: Mapping[str, object]) -> None:
    if "api_key" in values and values["api_key"] == values.get("operator_key"):
        raise Misconfigured("STEPWELL_API_KEY and STEPWELL_OPERATOR_KEY are the same: give each a key of its own")


def require(settings: Settings, *needs: Need) -> None:
    """Raise Misconfigured naming everything that is missing for a role with these needs.

    A key may also be in the record, where `require_key` looks; it is named here where the record is out of reach too.
    """
    missing: list[str] = []
    if "storage" in needs:
        missing += ["STEPWELL_NATS_URL"] * (not settings.nats_url) + ["STEPWELL_REDIS_URL"] * (not settings.redis_url)
    if "master_key" in needs and not settings.master_key:
        missing.append("STEPWELL_MASTER_KEY (any text of 16 bytes or more: it encrypts the secrets of agents)")
    if missing and "key" in needs and not _has_key(settings):
        missing.append("STEPWELL_API_KEY (the first key, unless keys are in the record already)")
    if missing:
        raise Misconfigured(f"the start needs {', '.join(missing)}; set what is missing and start again")


def require_key(settings: Settings, *, is_in_record: bool) -> None:
    """Raise Misconfigured where nobody could ever make a request of a door. `stepwell dev` asks for no keys."""
    if settings.mode != "dev" and not is_in_record and not _has_key(settings):
        raise Misconfigured(
            "the start needs a key, and none that is valid is in the record: set STEPWELL_API_KEY (a key of the tenant "
            f"`{DEFAULT_TENANT}`) or STEPWELL_OPERATOR_KEY (to make tenants and keys with `stepwell tenant` and "
            "`stepwell key`) to any text of visible characters, and start again"
        )


def _has_key(settings: Settings) -> bool:
    return bool(settings.api_key or settings.operator_key)


def _unknown(environment: Mapping[str, str]) -> list[str]:
    known = {option.name for option in _OPTIONS}
    ours = sorted(name for name in environment if name.startswith(_OURS) and not _OTHERS.fullmatch(name))
    return [name for name in ours if name not in known]


def _adapted_to_dev(settings: Settings) -> Settings:
    """`stepwell dev` brings its own servers and lets webhooks reach this machine."""
    networks = (*LOOPBACK_NETWORKS, *settings.webhook_allow_networks)
    return msgspec.structs.replace(settings, nats_url="", redis_url="", webhook_allow_networks=networks)


# ---------------------------------------------------------------- what each setting takes


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(text)
        return int(text)

    return read


def _seconds(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        seconds = parse_duration(text)
        if seconds is None or not low <= seconds <= high:
            raise ValueError(text)
        return seconds

    return read


def _deadline(text: str) -> float | None:
    return None if text == "off" else _seconds(0.001, 365 * _DAY_SECONDS)(text)


def _window(text: str) -> int:
    seconds = _seconds(1, 3600)(text)
    if seconds != int(seconds):
        raise ValueError(text)
    return int(seconds)


def _matching(pattern: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(text)
        return text

    return read


def _master_key(text: str) -> str:
    if len(text.encode("utf-8", "surrogateescape")) < MASTER_KEY_BYTES_MIN:
        raise ValueError
    # Refuses bytes that are no UTF-8, which would be another key in another process.
    text.encode()
    return text


def _listen_host(text: str) -> str:
    host, colon, _ = text.rpartition(":")
    if not colon:
        raise ValueError(text)
    bracketed = re.fullmatch(r"\[(.*)\]", host)
    if bracketed:
        return str(IPv6Address(bracketed[1]))
    return _matching(r"[A-Za-z0-9_.-]*")(host) or _DEFAULTS.listen_host


def _listen_port(text: str) -> int:
    return _port(text.rpartition(":")[2])


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ip_network(part.strip()) for part in text.split(","))


def _prefixes(text: str) -> tuple[str, ...]:
    prefixes = tuple(part.strip() for part in text.split(","))
    if len(prefixes) > _PREFIXES_MAX or not all(_PREFIX.fullmatch(prefix) for prefix in prefixes):
        raise ValueError(text)
    return prefixes


def _duration_option(name: str, field: str, low: float, high: float) -> _Option:
    takes = (
        f"a duration from {duration_text(low)} to {duration_text(high)}, such as 1m30s, 250ms or a number of seconds"
    )
    return _Option(name=name, field=field, read=_seconds(low, high), takes=takes)


def _whole_option(name: str, field: str, low: int, high: int, *, flag: str = "") -> _Option:
    takes = f"a whole number from {low} to {high}"
    return _Option(name=name, flag=flag, field=field, read=_whole(low, high), takes=takes)


_DEFAULTS = Settings()
_PREFIXES_MAX = 16
# Visible ASCII without `?` and `#`, and no slash at the end.
_PREFIX = re.compile(r"""(?:/[!"$-.0->@-~]+)+""")
_port = _whole(0, 65535)
_ADDRESS = "host:port, [ipv6]:port or :port"
_STORAGE = {"nats_url": "STEPWELL_NATS_URL", "redis_url": "STEPWELL_REDIS_URL"}

_OPTIONS = (
    _Option(name="STEPWELL_LISTEN_ADDR", field="listen_host", read=_listen_host, takes=_ADDRESS),
    _Option(name="STEPWELL_LISTEN_ADDR", field="listen_port", read=_listen_port, takes=_ADDRESS),
    _Option(flag="--port", field="listen_port", read=_port, takes="a port number, 0 for any free one"),
    _whole_option("STEPWELL_SHARDS", "shards", 1, SHARDS_MAX, flag="--shards"),
    _Option(
        name="STEPWELL_NATS_URL",
        field="nats_url",
        read=_matching(r"(?:nats|tls)://[!-~]+"),
        takes="the address of NATS: nats://host:port or tls://host:port, several with commas between them",
        is_secret=True,
    ),
    _Option(
        name="STEPWELL_REDIS_URL",
        field="redis_url",
        read=_matching(r"(?:redis|rediss|unix)://[!-~]+"),
        takes="the address of Redis or Valkey: redis://host:port, rediss://host:port or unix:///path",
        is_secret=True,
    ),
    _Option(
        name="STEPWELL_MASTER_KEY",
        field="master_key",
        read=_master_key,
        takes=f"any text of at least {MASTER_KEY_BYTES_MIN} bytes of UTF-8",
        is_secret=True,
    ),
    _Option(
        name="STEPWELL_API_KEY",
        field="api_key",
        read=_matching(r"[!-~]{1,512}"),
        takes="1 to 512 visible ASCII characters without spaces, because it travels in a header",
        is_secret=True,
    ),
    _Option(
        name="STEPWELL_LOG_LEVEL",
        field="log_level",
        read=_matching("debug|info|warning|error"),
        takes="debug, info, warning or error",
    ),
    _whole_option("STEPWELL_DISPATCH_MAX_ATTEMPTS", "attempts_max", 1, 100),
    _duration_option("STEPWELL_DISPATCH_LEASE_TIMEOUT", "lease_seconds", LEASE_SECONDS_MIN, _DAY_SECONDS),
    _duration_option("STEPWELL_DISPATCH_TIMEOUT", "delivery_seconds", 0.1, 600),
    _duration_option("STEPWELL_DISPATCH_BASE_DELAY", "base_delay_seconds", 0.001, 3600),
    _duration_option("STEPWELL_DISPATCH_MAX_DELAY", "delay_seconds_max", 0.001, _DAY_SECONDS),
    _duration_option("STEPWELL_DISPATCH_UNREACHABLE", "unreachable_seconds", 0, _DAY_SECONDS),
    _Option(
        name="STEPWELL_DEADLINE_TIMEOUT",
        field="deadline_seconds",
        read=_deadline,
        takes="off, or a duration up to 365 days, such as 2h or 90s",
    ),
    _duration_option("STEPWELL_MAX_LIFE", "life_seconds", 1, 365 * _DAY_SECONDS),
    _Option(
        name="STEPWELL_SIGNATURE_WINDOW",
        field="signature_window_seconds",
        read=_window,
        takes="a duration of whole seconds from 1s to 1h",
    ),
    _Option(
        name="STEPWELL_PUBLIC_PREFIXES",
        field="public_prefixes",
        read=_prefixes,
        takes=f"up to {_PREFIXES_MAX} paths such as /stepwell, with commas between them and no slash at their end",
    ),
    _Option(
        name="STEPWELL_WEBHOOK_ALLOW_NETWORKS",
        field="webhook_allow_networks",
        read=_networks,
        takes="networks such as 10.0.0.0/8 or fd00::/8 (no bits set behind the prefix), with commas between them",
    ),
    # An entry expires a second before its request does, so a budget has to leave some time in front of that.
    _duration_option("STEPWELL_REQUEST_BUDGET", "budget_seconds", 2, 30),
    _duration_option("STEPWELL_DRAIN_TIMEOUT", "drain_seconds", 0, 30),
    _whole_option("STEPWELL_MAX_BODY_BYTES", "body_bytes_max", 1024, _DEFAULTS.body_bytes_max),
    _duration_option("STEPWELL_APPROVAL_TIMEOUT", "approval_timeout_seconds", 1, 365 * _DAY_SECONDS),
    # Read, so that a mistake shows, and without effect until what they set is built.
    _duration_option("STEPWELL_RETENTION", "", 0, 3650 * _DAY_SECONDS),
    _duration_option("STEPWELL_AUDIT_RETENTION", "", 0, 3650 * _DAY_SECONDS),
    _Option(
        name="STEPWELL_NO_POLICY",
        field="no_policy",
        read=_matching("allow|deny"),
        takes="allow or deny: what an agent without a policy may do where its tenant's settings say nothing",
    ),
    _Option(
        name="STEPWELL_OPERATOR_KEY",
        field="operator_key",
        read=_matching(r"[!-~]{1,512}"),
        takes="1 to 512 visible ASCII characters without spaces",
        is_secret=True,
    ),
)
