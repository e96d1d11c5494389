"""`python -m stepwell.testing record`: an execution that ended somewhere becomes a test in a folder.

The address of the kernel and the key are `REBUNO_URL` and `REBUNO_API_KEY`.
"""

import argparse
import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from stepwell.client import Client
from stepwell.errors import RebunoError
from stepwell.testing.recording import Recording

ID_DIGITS = 8
GIVE_UP_SECONDS = 10.0

_HANDLER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

_TEST = '''"""Execution {execution_id} of agent {agent_id}, as it was recorded: the handler still does the same."""

import asyncio
from pathlib import Path

from {module} import {function}
from stepwell.testing import Recording


def test_{name}_replays() -> None:
    recording = Recording.load(Path(__file__).with_name("{name}.json"))
    asyncio.run(recording.replay({function}))
'''


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, or 2 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="write an execution that has ended, and a test that replays it")
    record.add_argument("execution_id")
    record.add_argument("folder", type=Path, help="where the two files go; made if it is not there")
    record.add_argument("--handler", required=True, metavar="MODULE:FUNCTION", help="the handler that is tested")
    given = parser.parse_args(words)
    if not _HANDLER.fullmatch(given.handler):
        parser.error(f"{given.handler!r} names no handler: package.module:function does")
    try:
        written = _write(asyncio.run(_recorded(given.execution_id)), given.folder, given.handler)
    except (RebunoError, ValueError, OSError) as error:
        sys.stderr.write(f"stepwell.testing: {error}\n")
        return 2
    sys.stdout.write("".join(f"wrote {path}\n" for path in written))
    sys.stdout.write("It holds inputs and results as they were: see to it that no secret is among them.\n")
    return 0


async def _recorded(execution_id: str) -> Recording:
    async with Client(give_up_seconds=GIVE_UP_SECONDS) as client:
        return await Recording.of(client, execution_id)


def _write(recording: Recording, folder: Path, handler: str) -> tuple[Path, Path]:
    execution = recording.execution
    # Ids of executions begin with their time: the end tells two of one minute apart.
    name = re.sub(r"\W", "_", execution.agent_id, flags=re.ASCII) + "_" + execution.id[-ID_DIGITS:]
    module, function = handler.split(":")
    test = _TEST.format(
        execution_id=execution.id, agent_id=execution.agent_id, module=module, function=function, name=name
    )
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{name}.json", folder / f"test_{name}.py"
    recording.save(paths[0])
    paths[1].write_text(test, encoding="utf-8")
    return paths


if __name__ == "__main__":
    sys.exit(main())
