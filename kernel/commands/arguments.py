"""The command lines of the commands that talk to a door."""

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kernel.commands import actions
from kernel.commands.actions import Shown
from kernel.commands.calls import DEFAULT_URL, CommandFailed, DoorCalls
from kernel.domain.durations import parse_duration
from schemas.events import APPROVAL_STATUSES
from schemas.http import Quotas
from schemas.scopes import SCOPES

if TYPE_CHECKING:
    Group: TypeAlias = "argparse._SubParsersAction[ArgumentParser]"  # pyright: ignore[reportPrivateUsage] - argparse names it no other way
Act: TypeAlias = Callable[[DoorCalls, Namespace], Shown]

_ACCESS = f"""\
The door is named by --url or STEPWELL_URL (default: {DEFAULT_URL}), the key by --key or STEPWELL_API_KEY. A key on the
command line can be read by every user of this machine: prefer the variable. `stepwell dev` asks for no key.

Exit codes: 0 done, 1 refused by the door, 2 not sent or not answered.
"""
_NOUNS = {
    "tenant": "Make tenants and look at them (a key with the scope operator).",
    "key": "Create, list and revoke bearer keys (tenant:admin, or operator for every tenant).",
    "agent": "Look at agents, and delete them (agents:admin).",
    "policy": "Load, show and remove the policy of an agent (policies:admin).",
    "approval": "Look at what agents ask people for, and decide it (approvals:decide).",
}


def add_commands(commands: "Group") -> "Group":
    """Add the commands to a command line, and return the group of `policy`, for those that need no door.

    A parsed line of one of them has a member `act`: called with the line and the environment, it does the work.
    """
    groups = {noun: _group(commands, noun, about) for noun, about in _NOUNS.items()}
    _add_tenant(groups["tenant"])
    _add_key(groups["key"])
    _add(groups["agent"], "list", "List the agents.", actions.list_agents)
    delete = _add(groups["agent"], "delete", "Delete an agent without live executions.", actions.delete_agent)
    delete.add_argument("agent", metavar="AGENT")
    _add_policy(groups["policy"])
    _add_approval(groups["approval"])
    return groups["policy"]


def _add_tenant(group: "Group") -> None:
    about = (
        "Make a tenant, or change one. Quotas that are given replace all that it had, and settings likewise; without "
        "any they stay."
    )
    create = _add(group, "create", about, actions.create_tenant)
    create.add_argument("id", metavar="ID", help="1 to 64 letters, digits and _ -")
    for name in Quotas.__struct_fields__:
        create.add_argument(f"--{name.replace('_', '-')}", type=_count, metavar="NUMBER", help="a quota")
    create.add_argument("--no-policy", choices=("allow", "deny"), help="what an agent without a policy may do")
    create.add_argument("--retention", type=_duration, metavar="DURATION", help="after the end; 0: keep for good")
    _add(group, "list", "List the tenants.", actions.list_tenants)


def _add_key(group: "Group") -> None:
    create = _add(group, "create", "Create a key and write it to standard output, this once.", actions.create_key)
    create.add_argument("name", metavar="NAME", help="the name that stands in records for who holds the key")
    create.add_argument(
        "--scope",
        action="append",
        required=True,
        choices=SCOPES,
        metavar="SCOPE",
        help=f"may be repeated; one of: {', '.join(SCOPES)}",
    )
    create.add_argument("--tenant", metavar="ID", help="of another tenant (with a key of the scope operator)")
    create.add_argument("--expires-in", type=_duration, metavar="DURATION", help="such as 720h; without: never")
    listing = _add(group, "list", "List the keys that were not revoked.", actions.list_keys)
    listing.add_argument("--tenant", metavar="ID", help="only of this tenant (with a key of the scope operator)")
    _add(group, "revoke", "Revoke a key.", actions.revoke_key).add_argument("id", metavar="ID")


def _add_policy(group: "Group") -> None:
    load = _add(group, "load", "Load a bundle from a file as the policy of an agent.", actions.load_policy)
    load.add_argument("agent", metavar="AGENT")
    load.add_argument("file", metavar="FILE", help="YAML or JSON; - is standard input")
    show = _add(group, "show", "Show the bundle of an agent.", actions.show_policy)
    show.add_argument("agent", metavar="AGENT")
    remove = _add(group, "remove", "Remove the policy of an agent.", actions.remove_policy)
    remove.add_argument("agent", metavar="AGENT")


def _add_approval(group: "Group") -> None:
    listing = _add(
        group, "list", "List the approvals that nobody has decided yet, the oldest first.", actions.list_approvals
    )
    listing.add_argument(
        "--status",
        choices=(*APPROVAL_STATUSES, "all"),
        default="pending",
        metavar="STATUS",
        help=f"one of {', '.join(APPROVAL_STATUSES)} or all (default: pending)",
    )
    about = "Show what is asked with its arguments (these need executions:read), by which rule, and its message."
    _add(group, "show", about, actions.show_approval).add_argument("id", metavar="ID")
    grant = _add(group, "grant", "Let the step run.", actions.grant_approval)
    deny = _add(group, "deny", "Never let the step run.", actions.deny_approval)
    for decision in (grant, deny):
        decision.add_argument("id", metavar="ID")
        decision.add_argument("--reason", metavar="TEXT", help="is recorded; of a denial the agent is told it")


def _group(commands: "Group", noun: str, about: str) -> "Group":
    parser = commands.add_parser(noun, help=about, description=about, allow_abbrev=False)
    return parser.add_subparsers(dest="action", required=True, metavar="action", title="actions")


def _add(group: "Group", name: str, about: str, act: Act) -> ArgumentParser:
    parser = group.add_parser(
        name,
        help=about,
        description=about,
        epilog=_ACCESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--url", metavar="URL", help="where the door is")
    parser.add_argument("--key", metavar="KEY", help="the bearer key to ask with")
    parser.set_defaults(act=partial(_asked, act))
    return parser


def _asked(act: Act, options: Namespace, environment: Mapping[str, str]) -> Shown:
    try:
        return act(actions.door_of(options, environment), options)
    except CommandFailed as error:
        return Shown(notes=f"stepwell: {error}", code=error.code)


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration, such as 1h30m, 90s or a number of seconds")
    return seconds


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 2**53:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)
