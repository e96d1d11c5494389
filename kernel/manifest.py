"""The manifest that `--config` names: agents and their policies in a YAML file, applied as upserts at every start.
Nothing is removed.

A file that is wrong in any part fails the start whole. Its values hold secrets, so no message repeats one.
"""

import json
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
from kernel.control.bundles import compiled
from kernel.control.control import Control
from kernel.control.sealing import Sealer, SecretField
from kernel.domain.errors import BundleInvalid, Invalid, Misconfigured
from kernel.domain.policy.limits import BUNDLE_BYTES_MAX
from kernel.door.agents import CONCURRENCY_MAX, SECRET_BYTES_MIN
from kernel.door.webhook_urls import check_webhook_url
from kernel.settings import Settings
from schemas.control import AgentPut, PolicySet, SealedSecret
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
    """A bundle, as text or as it would stand in a file of its own; once the manifest is read, always text."""
    policy_file: str | UnsetType | None = UNSET
    """The path of a bundle, from the folder of the manifest."""

    def __repr__(self) -> str:
        return f"ManifestAgent(id={self.id!r})"

    @property
    def secrets(self) -> tuple[bytes, ...]:
        return tuple(secret.encode() for secret in (self.secret, self.next_secret) if secret)

    @property
    def bundle(self) -> str:
        """The text of its policy; empty where the file says nothing of one."""
        return self.policy if isinstance(self.policy, str) else ""


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agents: list[ManifestAgent] | None = None


async def read_manifest(path: Path, environment: Mapping[str, str], settings: Settings) -> tuple[ManifestAgent, ...]:
    """Return the agents of the file. Raises Misconfigured with the file and, where known, the line or the agent."""
    try:
        agents = tuple(_manifest(_document(path), environment).agents or ())
        _refuse_repeated([agent.id for agent in agents])
        return tuple([await _checked(agent, settings, path.parent) for agent in agents])
    except Misconfigured as error:
        raise Misconfigured(f"{path}: {error}") from error


async def apply_manifest(agents: Sequence[ManifestAgent], control: Control) -> None:
    """Register what the file says and is not so yet. `control` is level."""
    for agent in agents:
        found = control.agent(DEFAULT_TENANT, agent.id)
        if found is None or not _is_so(found, agent):
            answer = await control.submit(_entry(agent, control.sealer), timeout_seconds=SUBMIT_SECONDS_MAX)
            _log.info("agent %s was %s by the manifest", agent.id, "added" if answer.is_new else "changed")
        text, _ = control.policy_text(DEFAULT_TENANT, agent.id) or ("", 0)
        if agent.bundle and agent.bundle != text:
            await control.submit(_policy_entry(agent), timeout_seconds=SUBMIT_SECONDS_MAX)
            _log.info("the policy of agent %s was set by the manifest", agent.id)


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

    def expanded(value: object) -> object:
        match value:
            case str():
                return _VARIABLE.sub(value_of, value)
            case dict():
                return {key: expanded(each) for key, each in cast("dict[object, object]", value).items()}
            case list():
                return [expanded(each) for each in cast("list[object]", value)]
            case _:
                return value

    return expanded(cast("dict[object, object]", agent))


def _refuse_repeated(agent_ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for agent_id in agent_ids:
        if agent_id in seen:
            raise Misconfigured(f"agent {agent_id} stands there twice")
        seen.add(agent_id)


async def _checked(agent: ManifestAgent, settings: Settings, folder: Path) -> ManifestAgent:
    """Return the agent with the text of its policy, held to the rules of a registration by request."""
    try:
        _check_members(agent, secret_bytes_min=1 if settings.mode == "dev" else SECRET_BYTES_MIN)
        await check_webhook_url(agent.webhook_url, settings.webhook_allow_networks)
        bundle = _bundle(agent, folder)
    except BundleInvalid as error:
        raise Misconfigured(f"agent {agent.id}: policy: {_place_of(error)}: {error.reason}") from error
    except Invalid as error:
        raise Misconfigured(f"agent {agent.id}: {error.path}: {error.reason}") from error
    return msgspec.structs.replace(agent, policy=bundle or UNSET, policy_file=UNSET)


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


def _place_of(error: BundleInvalid) -> str:
    return f"line {error.line}: {error.field}" if error.field else f"line {error.line}"


def _bundle(agent: ManifestAgent, folder: Path) -> str:
    """Return the text of the policy, which is one that can be loaded; empty without one."""
    if agent.policy is not UNSET and agent.policy_file is not UNSET:
        raise Invalid("`policy` and `policy_file` exclude each other", path="policy")
    text = _file_text(folder / agent.policy_file) if agent.policy_file else _policy_text(agent.policy)
    if text:
        compiled(text)
    return text


def _file_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(BUNDLE_BYTES_MAX + 1)
        text = raw.decode()
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", path="policy_file") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not text in UTF-8", path="policy_file") from error
    if len(raw) > BUNDLE_BYTES_MAX:
        raise Invalid(f"{path} is larger than {BUNDLE_BYTES_MAX} bytes", path="policy_file")
    if not text.strip():
        # An empty file is a mistake, and starting without the policy would allow what it means to deny.
        raise Invalid(f"{path} is empty: without a policy the key is left out", path="policy_file")
    return text


def _policy_text(policy: Any) -> str:
    """Return a bundle that stands in the manifest as text. JSON is YAML, and loses nothing of what was read."""
    if policy is UNSET or policy is None:
        return ""
    if isinstance(policy, str):
        text = policy
    else:
        try:
            text = json.dumps(policy, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):
            raise Invalid("has a value that is not JSON, such as a date: put it in quotes", path="policy") from None
    if len(text.encode("utf-8", "surrogatepass")) > BUNDLE_BYTES_MAX:
        raise Invalid(f"larger than {BUNDLE_BYTES_MAX} bytes", path="policy")
    return text


def _policy_entry(agent: ManifestAgent) -> PolicySet:
    return PolicySet(
        id=new_uuid7(),
        at=time.time_ns() // 1000,
        by=PRINCIPAL,
        tenant=DEFAULT_TENANT,
        agent_id=agent.id,
        bundle=agent.bundle,
    )


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
