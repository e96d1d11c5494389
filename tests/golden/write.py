"""Adds what is not pinned yet: `python -m tests.golden.write`. It never changes what is there."""

import sys
from pathlib import Path

import msgspec

from tests.golden.files import FOLDER, WouldChange, add_file, add_lines, log_bytes
from tests.golden.refold import refold
from tests.golden.samples import PINNED
from tests.golden.stories import STORIES


def add_missing(folder: Path) -> list[str]:
    """Write missing names and logs into the folder and return what was added. Raises WouldChange."""
    added: list[str] = []
    for name, samples in PINNED.items():
        added += [f"{name}: {each}" for each in add_lines(folder / name, samples)]
    for name, story in STORIES.items():
        log, expected = folder / f"{name}.jsonl", folder / f"{name}.expected.json"
        # A frozen log stays as it is, whatever has become of the story it was once written from.
        if not log.exists():
            entries = story()
            outcome = msgspec.json.format(msgspec.json.encode(refold(entries)), indent=1)
            add_file(expected, outcome + b"\n")
            add_file(log, log_bytes(entries))
            added.append(log.name)
    return added


def main() -> None:
    try:
        added = add_missing(FOLDER)
    except WouldChange as error:
        sys.exit(f"nothing more was written: {error}")
    sys.stdout.write("".join(f"added {each}\n" for each in added) or "nothing to add\n")


if __name__ == "__main__":
    main()
