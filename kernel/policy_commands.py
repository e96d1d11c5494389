"""`stepwell policy check | test`: a bundle is loaded, and a call judged, by the code that decides in a server.

Nothing here needs a server, a network or a key.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast, get_args

from kernel.domain.canonical import Plain
from kernel.domain.errors import BundleInvalid, Invalid, Misconfigured
from kernel.domain.json_values import read_value
from kernel.domain.policy import Bundle, Call, Passed, explain, load_bundle
from kernel.domain.policy.limits import BUNDLE_BYTES_MAX
from schemas.entries import StepKind, Verdict

EXIT_ALLOWED = 0
EXIT_DENIED = 1
EXIT_REFUSED = 2
EXIT_APPROVAL = 3

_KINDS: tuple[StepKind, ...] = get_args(StepKind)
_BUILT_IN = {
    "local": "no rule matches, and a local step is allowed then",
    "default": "no rule matches, so default_action decides",
}

_EXIT_CODES_OF_CHECK = "exit codes: 0 the bundle can be loaded, 2 it cannot"
_EXIT_CODES_OF_TEST = """\
exit codes: 0 the call is allowed, 1 it is denied, 3 it needs an approval,
2 the bundle or the arguments cannot be read
"""

OFFLINE = frozenset({"check", "test"})
"""The commands of `policy` that need no door."""

if TYPE_CHECKING:
    Group: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage] - argparse names it no other way
Say = Callable[[str], None]


def add_policy_commands(below: "Group") -> None:
    """Add the two commands that need no door to the group of `policy`."""
    about_check = "Load a bundle as the server would, and say what is wrong with it, on which line."
    check = below.add_parser(
        "check", help=about_check, description=about_check, epilog=_EXIT_CODES_OF_CHECK, allow_abbrev=False
    )
    about_test = "Judge one call, and say which rule decides and why the rules before it do not."
    test = below.add_parser(
        "test",
        help=about_test,
        description=about_test,
        epilog=_EXIT_CODES_OF_TEST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for parser in (check, test):
        parser.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON file with the bundle; - is the input")
    test.add_argument("--kind", choices=_KINDS, default="tool_call", help="kind of the step (default: tool_call)")
    test.add_argument("--target", default="", help="name of the tool or model (default: empty)")
    test.add_argument("--args", default="null", metavar="JSON", help="arguments as JSON (default: null)")
    test.add_argument("--agent", default="", metavar="ID", help="agent that makes the call (default: none)")


def run_policy(options: argparse.Namespace, *, say: Say, complain: Say) -> int:
    """Run the command that the options name and return the exit code; `complain` takes what cannot be read."""
    file = cast("Path", options.file)
    try:
        bundle = _bundle(file)
        if options.action == "check":
            for line in _listed(bundle):
                say(line)
            return EXIT_ALLOWED
        call = Call(agent_id=_text(options.agent), kind=options.kind, target=_text(options.target), args=_args(options))
    except BundleInvalid as error:
        field = f"{error.field}: " if error.field else ""
        complain(f"stepwell: {file}, line {error.line}: {field}{error.reason}")
        return EXIT_REFUSED
    except (Invalid, Misconfigured) as error:
        complain(f"stepwell: {error}")
        return EXIT_REFUSED
    return _judge(bundle, call, say)


def _judge(bundle: Bundle, call: Call, say: Say) -> int:
    passed: list[Passed] = []
    verdict = explain(bundle, call, version=0, no_policy="deny", passed=passed)
    for rule in passed:
        say(f"  {rule.rule_id}: does not match, {rule.part} does not hold")
    is_rule = len(passed) < len(bundle.rules)
    asked = bundle.rules[len(passed)].then.approval if is_rule else None
    why = "matches in every part" if is_rule else _BUILT_IN[verdict.rule_id]
    say(f"  {verdict.rule_id}: {why}")
    for line in _terms(verdict, is_default_time=asked is None or asked.timeout_ms is None):
        say(f"    {line}")
    match verdict.decision:
        case "allow":
            say("allowed")
            return EXIT_ALLOWED
        case "deny":
            say(f"denied: {verdict.reason}")
            return EXIT_DENIED
        case "require_approval":
            say("needs an approval")
            return EXIT_APPROVAL


def _terms(verdict: Verdict, *, is_default_time: bool) -> list[str]:
    lines: list[str] = []
    approval, limit = verdict.approval, verdict.rate_limit
    if approval is not None:
        who = ", ".join(approval.approvers) or "whoever may decide approvals"
        apart = ", but never who created the execution" if approval.separate_requester else ""
        # A server may be set up otherwise, and nothing here can know it.
        unless = ", or what STEPWELL_APPROVAL_TIMEOUT of the server says" if is_default_time else ""
        lines.append(f"approved by {who}{apart}, within {approval.timeout_ms / 1000:g} s{unless}")
    if limit is not None:
        lines.append(f"at most {limit.max_calls} calls in {limit.window_ms / 1000:g} s, counted per {limit.per}")
    if verdict.token_budget_max:
        lines.append(f"denied once the execution has used {verdict.token_budget_max} tokens")
    return lines


def _listed(bundle: Bundle) -> list[str]:
    rules = [f"  {rule.priority}: {rule.id}: {rule.then.decision}" for rule in bundle.rules]
    head = f"the bundle can be loaded; {len(rules)} rules, in the order in which they are tried:"
    return [head, *rules, f"  otherwise: {bundle.default_action}"]


def _bundle(path: Path) -> Bundle:
    try:
        if path == Path("-"):
            raw = sys.stdin.buffer.read(BUNDLE_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(BUNDLE_BYTES_MAX + 1)
        text = raw.decode()
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BundleInvalid("not UTF-8; save the file as UTF-8", line=line, field="") from None
    return load_bundle(text)


def _text(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise Misconfigured("an argument is not UTF-8") from None
    return argument


def _args(options: argparse.Namespace) -> Plain:
    raw = _text(options.args).encode()
    try:
        return read_value(raw).plain
    except Invalid as error:
        place = f" at {error.path}" if error.path else ""
        raise Misconfigured(f"--args{place}: {error.reason}; quote the JSON for the shell: '{{\"a\": 1}}'") from None
