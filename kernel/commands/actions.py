"""What each command asks of the door, and what it shows of the answer."""

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from kernel.commands.calls import DEFAULT_URL, EXIT_UNUSABLE, CommandFailed, DoorCalls, segment
from kernel.domain.policy.limits import BUNDLE_BYTES_MAX
from schemas import http

_QUOTAS = http.Quotas.__struct_fields__


class Shown(msgspec.Struct, frozen=True):
    """What a command writes: `out` is for programs and people, `notes` for people alone."""

    out: str = ""
    notes: str = ""
    code: int = 0


def door_of(options: Namespace, environment: Mapping[str, str]) -> DoorCalls:
    url: str = options.url or environment.get("STEPWELL_URL") or DEFAULT_URL
    key: str = options.key or environment.get("STEPWELL_API_KEY") or ""
    return DoorCalls(url, key)


# ---------------------------------------------------------------- keys


def create_key(door: DoorCalls, options: Namespace) -> Shown:
    """Show the key alone on standard output, so that a script can take it from there."""
    body: dict[str, object] = {"name": options.name, "scopes": options.scope}
    if options.tenant:
        body["tenant"] = options.tenant
    if options.expires_in is not None:
        ends_at = datetime.now(UTC) + timedelta(seconds=options.expires_in)
        body["expires_at"] = ends_at.isoformat().replace("+00:00", "Z")
    key, _ = door.post("/v0/keys", body, http.Key)
    ends = "" if key.expires_at is UNSET else f", until {key.expires_at}"
    note = f"key {key.id} of tenant {key.tenant}{ends}: it is shown this once, and nobody can look it up again"
    return Shown(out="" if key.key is UNSET else key.key, notes=note)


def list_keys(door: DoorCalls, options: Namespace) -> Shown:
    keys = door.pages("/v0/keys", http.Key, tenant=options.tenant or "")
    rows = [(key.id, key.tenant, key.name, _or_dash(key.expires_at), " ".join(key.scopes)) for key in keys]
    return Shown(out=_table(("ID", "TENANT", "NAME", "EXPIRES", "SCOPES"), rows))


def revoke_key(door: DoorCalls, options: Namespace) -> Shown:
    door.send("DELETE", f"/v0/keys/{segment(options.id)}")
    return Shown(notes=f"key {options.id} is revoked, everywhere within a second")


# ---------------------------------------------------------------- tenants


def create_tenant(door: DoorCalls, options: Namespace) -> Shown:
    quotas = {name: getattr(options, name) for name in _QUOTAS if getattr(options, name) is not None}
    settings: dict[str, object] = {} if options.no_policy is None else {"no_policy": options.no_policy}
    if options.retention is not None:
        settings["retention_seconds"] = round(options.retention)
    body: dict[str, object] = {"id": options.id}
    body |= {name: value for name, value in (("quotas", quotas), ("settings", settings)) if value}
    tenant, is_new = door.post("/v0/tenants", body, http.Tenant)
    note = f"tenant {tenant.id} {'is made' if is_new else 'was there and is as you say now'}"
    return Shown(out=_table(_TENANT_TITLES, [_tenant_row(tenant)]), notes=note)


def list_tenants(door: DoorCalls, _: Namespace) -> Shown:
    return Shown(out=_table(_TENANT_TITLES, [_tenant_row(each) for each in door.pages("/v0/tenants", http.Tenant)]))


_TENANT_TITLES = ("TENANT", "QUOTAS", "SETTINGS")


def _tenant_row(tenant: http.Tenant) -> tuple[str, ...]:
    return (tenant.id, _members(tenant.quotas), _members(tenant.settings))


def _members(body: msgspec.Struct) -> str:
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not UNSET}
    return " ".join(f"{name}={value}" for name, value in given.items()) or "-"


# ---------------------------------------------------------------- agents and policies


def list_agents(door: DoorCalls, _: Namespace) -> Shown:
    agents = door.pages("/v0/agents", http.Agent)
    rows = [
        (each.id, str(each.policy_version or "-"), str(each.max_concurrency), each.updated_at, each.webhook_url)
        for each in agents
    ]
    return Shown(out=_table(("AGENT", "POLICY", "CALLS", "CHANGED", "WEBHOOK"), rows))


def delete_agent(door: DoorCalls, options: Namespace) -> Shown:
    door.send("DELETE", f"/v0/agents/{segment(options.agent)}")
    return Shown(notes=f"agent {options.agent} is deleted, and its policy with it")


def load_policy(door: DoorCalls, options: Namespace) -> Shown:
    bundle = _read_bundle(options.file)
    if not bundle.strip():
        raise CommandFailed(f"{options.file} is empty; to remove a policy: stepwell policy remove {options.agent}")
    path = f"/v0/policies/{segment(options.agent)}"
    door.send("POST", path, {"bundle": bundle})
    version = door.get(path, http.Policy).policy_version
    return Shown(notes=f"agent {options.agent} has policy {version}, everywhere within a second")


def show_policy(door: DoorCalls, options: Namespace) -> Shown:
    policy = door.get(f"/v0/policies/{segment(options.agent)}", http.Policy)
    if not policy.policy_version:
        return Shown(notes=f"agent {options.agent} has no policy")
    return Shown(out=policy.bundle.removesuffix("\n"), notes=f"policy {policy.policy_version}")


def remove_policy(door: DoorCalls, options: Namespace) -> Shown:
    door.send("POST", f"/v0/policies/{segment(options.agent)}", {"bundle": ""})
    return Shown(notes=f"agent {options.agent} has no policy any more")


def _read_bundle(path: str) -> str:
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(BUNDLE_BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(BUNDLE_BYTES_MAX + 1)
        text = raw.decode()
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}", code=EXIT_UNUSABLE) from error
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path} is not text in UTF-8", code=EXIT_UNUSABLE) from error
    if len(raw) > BUNDLE_BYTES_MAX:
        raise CommandFailed(f"{path} is larger than {BUNDLE_BYTES_MAX} bytes", code=EXIT_UNUSABLE)
    return text


# ---------------------------------------------------------------- approvals


def list_approvals(door: DoorCalls, options: Namespace) -> Shown:
    """Show what was asked by target, rule and message; the arguments are shown by `show`, which reads the step."""
    approvals = door.pages("/v0/approvals", http.Approval, status=options.status)
    rows = [
        (
            each.id,
            each.status,
            *map(_visible, (each.agent_id, each.target, each.rule_id)),
            _visible(each.message) or "-",
        )
        for each in approvals
    ]
    return Shown(out=_table(("ID", "STATUS", "AGENT", "ASKED", "RULE", "MESSAGE"), rows))


def show_approval(door: DoorCalls, options: Namespace) -> Shown:
    approval = door.get(f"/v0/approvals/{segment(options.id)}", http.Approval)
    state = approval.status
    if approval.status == "pending":
        state += f", until {approval.timeout_at}"
    elif approval.decided_by:
        state += f" by {_visible(approval.decided_by)}"
    lines = [
        ("approval", approval.id),
        ("status", state),
        ("agent", _visible(approval.agent_id)),
        ("asked", f"{_visible(approval.target)} {_args_of(door, approval)}"),
        ("rule", _visible(approval.rule_id)),
        ("message", _visible(approval.message) or "-"),
        ("deciders", _visible(", ".join(approval.approvers)) or "whoever may decide approvals"),
        ("reason", _visible(approval.rationale) or "-"),
        ("execution", approval.execution_id),
    ]
    return Shown(out="\n".join(f"{name:<9}  {text}" for name, text in lines))


def grant_approval(door: DoorCalls, options: Namespace) -> Shown:
    return _decide(door, options, verb="grant", done="granted: the step may run")


def deny_approval(door: DoorCalls, options: Namespace) -> Shown:
    return _decide(door, options, verb="deny", done="denied: the step never runs, and the agent is told")


def _decide(door: DoorCalls, options: Namespace, *, verb: str, done: str) -> Shown:
    body = {"rationale": options.reason} if options.reason else None
    door.send("POST", f"/v0/approvals/{segment(options.id)}/{verb}", body)
    return Shown(notes=f"approval {options.id} is {done}")


def _args_of(door: DoorCalls, approval: http.Approval) -> str:
    """The arguments, whole: whoever decides must see the end of them, too."""
    path = f"/v0/executions/{approval.execution_id}/steps/{approval.step_id}"
    try:
        raw = bytes(door.get(path, http.Step).args)
    except CommandFailed as error:
        return f"(its arguments cannot be shown: {error})"
    try:
        # Spelled anew, so that no letter hides behind an escape.
        return _visible(json.dumps(json.loads(raw), ensure_ascii=False))
    except (ValueError, RecursionError):
        return _visible(raw.decode(errors="replace"))


def _visible(text: str) -> str:
    """Escape what is not seen or moves the cursor: agents choose these texts, and people trust the screen."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


# ---------------------------------------------------------------- tables


def _or_dash(text: str | UnsetType) -> str:
    return "-" if text is UNSET else text


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, the last one as long as it is."""
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles) - 1)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    )
