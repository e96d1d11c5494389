"""The manifest that `--config` names: agents in a YAML file, applied as upserts at every start. Nothing is removed.

A file that is wrong in any part fails the start whole. Its values hold secrets, so no message repeats one.
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, StreamMark, YAMLError

from kernel.control.agents import Agent
from kernel.control.control import Control
from kernel.control.sealing import Sealer, SecretField
from kernel.domain.errors import Invalid, Misconfigured
from kernel.door.agents import CONCURRENCY_MAX, SECRET_BYTES_MIN
from kernel.door.webhook_urls import check_webhook_url
from kernel.settings import Settings
from schemas.control import AgentPut, SealedSecret
from schemas.ids import AGENT_ID, DEFAULT_TENANT, new_uuid7

MANIFEST_BYTES_MAX = 1024 * 1024
SUBMIT_SECONDS_MAX = 10.0
PRINCIPAL = "manifest"

_VARIABLE = re.compile(r"\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_log = logging.getLogger(__name__)


class ManifestAgent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent as the file spells it. An absent optional member leaves what the agent has."""

    id: str
    webhook_url: str
    secret: str
    next_secret: str | None = None
    require_v1: bool | None = None
    max_concurrency: int | None = None
    policy: Any | UnsetType = UNSET
    policy_file: str | UnsetType | None = UNSET

    def __repr__(self) -> str:
        return f"ManifestAgent(id={self.id!r})"

    @property
    def secrets(self) -> tuple[bytes, ...]:
        return tuple(secret.encode() for secret in (self.secret, self.next_secret) if secret)


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agents: list[ManifestAgent] | None = None


async def read_manifest(path: Path, environment: Mapping[str, str], settings: Settings) -> tuple[ManifestAgent, ...]:
    """Return the agents of the file. Raises Misconfigured with the file and, where known, the line or the agent."""
    try:
        agents = tuple(_manifest(_document(path), environment).agents or ())
        _refuse_repeated([agent.id for agent in agents])
        for agent in agents:
            await _check(agent, settings)
    except Misconfigured as error:
        raise Misconfigured(f"{path}: {error}") from error
    return agents


async def apply_manifest(agents: Sequence[ManifestAgent], control: Control) -> None:
    """Register what the file says and is not so yet. `control` is level."""
    for agent in agents:
        found = control.agent(DEFAULT_TENANT, agent.id)
        if found is None or not _is_so(found, agent):
            answer = await control.submit(_entry(agent, control.sealer), timeout_seconds=SUBMIT_SECONDS_MAX)
            _log.info("agent %s was %s by the manifest", agent.id, "added" if answer.is_new else "changed")


# ---------------------------------------------------------------- reading


def _document(path: Path) -> object:
    try:
        with path.open("rb") as file:
            raw = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise Misconfigured(f"the file cannot be read: {error.strerror}") from error
    if len(raw) > MANIFEST_BYTES_MAX:
        raise Misconfigured(f"the file is larger than {MANIFEST_BYTES_MAX} bytes")
    try:
        return YAML(typ="safe", pure=True).load(raw)  # pyright: ignore[reportUnknownMemberType] - the package is untyped there
    except MarkedYAMLError as error:
        # What the parser says quotes the file; the place is enough to find it.
        mark = cast("StreamMark | None", error.problem_mark)  # pyright: ignore[reportUnknownMemberType] - untyped there
        line = f"line {mark.line + 1}: " if mark is not None else ""
        what = "a key stands there twice" if isinstance(error, DuplicateKeyError) else "not YAML 1.2 of one document"
        raise Misconfigured(f"{line}{what}") from None
    except (YAMLError, RecursionError, UnicodeDecodeError):
        raise Misconfigured("not YAML 1.2 in UTF-8") from None


def _manifest(document: object, environment: Mapping[str, str]) -> _Manifest:
    """The document with its variables expanded and its types checked.

    They are expanded in values that the YAML parser has already delimited, so that no secret can become structure.
    """
    if document is None:
        return _Manifest()
    if not isinstance(document, dict):
        raise Misconfigured("a mapping with the key `agents` is expected")
    members = cast("dict[object, object]", document)
    agents = members.get("agents")
    if isinstance(agents, list):
        members["agents"] = [_expanded(agent, environment) for agent in cast("list[object]", agents)]
    try:
        # Not strict, because a number or a truth value that comes out of a variable is text.
        return msgspec.convert(members, _Manifest, strict=False)
    except msgspec.ValidationError as error:
        raise Misconfigured(str(error)) from None


def _expanded(agent: object, environment: Mapping[str, str]) -> object:
    if not isinstance(agent, dict):
        return agent

    def value_of(found: re.Match[str]) -> str:
        name, closing = found[1], found[2]
        if not closing or not _NAME.fullmatch(name):
            raise Misconfigured("`${` has to begin the name of a variable in braces, such as ${AGENT_SECRET}")
        if name not in environment:
            raise Misconfigured(f"the variable {name} is not set")
        return environment[name]

    members = cast("dict[object, object]", agent)
    return {key: _VARIABLE.sub(value_of, value) if isinstance(value, str) else value for key, value in members.items()}


def _refuse_repeated(agent_ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for agent_id in agent_ids:
        if agent_id in seen:
            raise Misconfigured(f"agent {agent_id} stands there twice")
        seen.add(agent_id)


async def _check(agent: ManifestAgent, settings: Settings) -> None:
    """Hold the agent to the rules of a registration by request."""
    try:
        _check_members(agent, secret_bytes_min=1 if settings.mode == "dev" else SECRET_BYTES_MIN)
        _refuse_policies(agent)
        await check_webhook_url(agent.webhook_url, settings.webhook_allow_networks)
    except Invalid as error:
        raise Misconfigured(f"agent {agent.id}: {error.path}: {error.reason}") from error


def _check_members(agent: ManifestAgent, *, secret_bytes_min: int) -> None:
    if not AGENT_ID.fullmatch(agent.id):
        raise Invalid("1 to 128 letters, digits and . _ : -", path="id")
    if agent.max_concurrency is not None and not 1 <= agent.max_concurrency <= CONCURRENCY_MAX:
        raise Invalid(f"a whole number from 1 to {CONCURRENCY_MAX}", path="max_concurrency")
    for name, secret in (("secret", agent.secret), ("next_secret", agent.next_secret or None)):
        if secret is None:
            continue
        try:
            size_bytes = len(secret.encode())
        except UnicodeEncodeError:
            raise Invalid("not text of whole characters", path=name) from None
        if size_bytes < secret_bytes_min:
            raise Invalid(f"shorter than {secret_bytes_min} bytes", path=name)


def _refuse_policies(agent: ManifestAgent) -> None:
    if agent.policy is not UNSET and agent.policy_file is not UNSET:
        raise Invalid("`policy` and `policy_file` exclude each other", path="policy")
    for name, policy in (("policy", agent.policy), ("policy_file", agent.policy_file)):
        if policy is not UNSET and policy:
            # Starting without it would allow what the operator means to deny.
            raise Invalid("policies are not built yet, so it has to be left out", path=name)


def _entry(agent: ManifestAgent, sealer: Sealer) -> AgentPut:
    def sealed(field: SecretField, secret: str | None) -> SealedSecret | UnsetType:
        if not secret:
            return UNSET
        return sealer.seal(secret.encode(), tenant=DEFAULT_TENANT, agent_id=agent.id, field=field)

    return AgentPut(
        id=new_uuid7(),
        at=time.time_ns() // 1000,
        by=PRINCIPAL,
        tenant=DEFAULT_TENANT,
        agent_id=agent.id,
        webhook_url=agent.webhook_url,
        secret=sealed("secret", agent.secret),
        next_secret=sealed("next_secret", agent.next_secret),
        require_v1=UNSET if agent.require_v1 is None else agent.require_v1,
        max_concurrency=UNSET if agent.max_concurrency is None else agent.max_concurrency,
    )


def _is_so(found: Agent, wanted: ManifestAgent) -> bool:
    """Whether the agent is already as wanted: then a start appends nothing."""
    return (
        found.webhook_url == wanted.webhook_url
        and found.secrets == wanted.secrets
        and wanted.require_v1 in (None, found.require_v1)
        and wanted.max_concurrency in (None, found.max_concurrency)
    )
