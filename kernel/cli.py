"""The command line: what runs a server (`stepwell dev | server | door | projector | dispatcher`), what talks to one
(`tenant | key | agent | policy | approval`), `gateway`, and `version`.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from kernel.commands import Shown, add_commands
from kernel.dev import DATA_PATH, run_dev
from kernel.main import Arguments, Command, run_command
from kernel.policy_commands import OFFLINE, add_policy_commands, run_policy

_SETTINGS = """\
Settings come from the environment; a flag beats them. What the server cannot start without:

  STEPWELL_NATS_URL     where NATS with JetStream is: nats://host:port
  STEPWELL_REDIS_URL    where Redis or Valkey is: redis://host:port
  STEPWELL_MASTER_KEY   any text of 16 bytes or more; it encrypts the secrets of agents
  STEPWELL_API_KEY      a key that requests carry (server and door), unless the record has keys already

All of them are listed in docs/contract.md, section 11.
"""

_COMMANDS: dict[Command, str] = {
    "server": "Run door, projector and dispatcher in one process, on your NATS and Redis.",
    "door": "Run the HTTP front door alone. Any number may run.",
    "projector": "Run a projector alone: it folds the log into the view. Any number may run and share the work.",
    "dispatcher": "Run a dispatcher alone: it delivers work to agents and watches leases. Any number may run.",
}

# Of the agents' library, where that is installed beside.
_ELSEWHERE = {"gateway": "Run a gateway: LLM calls of agents that point their provider's client at it become steps."}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] and words[0] in _ELSEWHERE:
        return _run_elsewhere(words[0], words[1:])
    options = _parser().parse_args(words)
    command: str = options.command
    if command == "version":
        print(f"stepwell {_version()}")
        return 0
    if command == "policy" and options.action in OFFLINE:
        return run_policy(options, say=print, complain=lambda text: print(text, file=sys.stderr))
    act: Callable[[argparse.Namespace, Mapping[str, str]], Shown] | None = getattr(options, "act", None)
    if act is not None:
        return _show(act(options, os.environ))
    arguments = Arguments(flags=_flags(options), config_path=getattr(options, "config", None))
    if command == "dev":
        return run_dev(arguments, data_path=options.data, say=lambda text: print(text, flush=True))
    return run_command(options.command, arguments)


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="stepwell",
        description="Durable execution for AI agents: a step that has a recorded outcome is never run again.",
        epilog=_SETTINGS,
        formatter_class=plain,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command", title="commands")
    about_dev = "Run everything on this machine, with NATS and Valkey included and no keys: to try and to develop."
    dev = commands.add_parser("dev", help=about_dev, description=about_dev, allow_abbrev=False)
    dev.add_argument(
        "--data", type=Path, default=DATA_PATH, metavar="FOLDER", help=f"where the data is kept (default: {DATA_PATH})"
    )
    _add_door_flags(dev)
    _add_shards(dev)
    for name, about in _COMMANDS.items():
        command = commands.add_parser(
            name, help=about, description=about, epilog=_SETTINGS, formatter_class=plain, allow_abbrev=False
        )
        if name in ("server", "door"):
            _add_door_flags(command)
        _add_shards(command)
    for name, about in _ELSEWHERE.items():
        commands.add_parser(name, help=about, add_help=False)
    add_policy_commands(add_commands(commands))
    commands.add_parser("version", help="Show the version.", allow_abbrev=False)
    return parser


def _run_elsewhere(name: str, words: Sequence[str]) -> int:
    found = metadata.entry_points(group="stepwell.commands", name=name)
    if not found:
        print(f"stepwell {name} comes with the agents' library: pip install stepwell", file=sys.stderr)
        return 2
    run: Callable[[Sequence[str]], int] = next(iter(found)).load()
    return run(words)


def _show(shown: Shown) -> int:
    if shown.notes:
        print(shown.notes, file=sys.stderr, flush=True)
    if shown.out:
        print(shown.out, flush=True)
    return shown.code


def _version() -> str:
    try:
        return metadata.version("stepwell-kernel")
    except metadata.PackageNotFoundError:
        # A checkout that is run without being installed.
        return "(not installed)"


def _add_door_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with agents to register at the start")
    parser.add_argument("--port", metavar="PORT", help="port to listen on (default: 8080; 0: any free one)")


def _add_shards(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shards",
        metavar="NUMBER",
        help="number of shards of the record (default: 8); fixed by the very first start",
    )


def _flags(options: argparse.Namespace) -> dict[str, str]:
    found = {f"--{name}": getattr(options, name, None) for name in ("port", "shards")}
    return {flag: text for flag, text in found.items() if text is not None}


if __name__ == "__main__":
    sys.exit(main())
