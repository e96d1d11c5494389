"""Reading and writing of golden files. A name that is there is never given other bytes."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Raw

FOLDER = Path(__file__).parent
_SEPARATOR = ": "


class WouldChange(Exception):
    """What is pinned would be edited. Others rely on it: give the new form a name of its own."""


class FrozenEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a golden log: an entry as it lies in the log, and what the projector knew of it.

    `parked` is the reason of an entry that was parked and not folded.
    """

    seq: int
    stored_at: int
    payload: Raw
    is_repeated: bool = False
    parked: str = ""


def read_lines(file: Path) -> dict[str, str]:
    """Return the pinned texts of a file by name; none where the file does not exist."""
    if not file.exists():
        return {}
    lines = file.read_bytes().decode().removesuffix("\n").split("\n")
    pairs = [line.partition(_SEPARATOR) for line in lines]
    found = {name: text for name, _, text in pairs}
    if len(found) != len(lines):
        raise WouldChange(f"{file.name} holds a name twice")
    return found


def add_lines(file: Path, wanted: Mapping[str, str]) -> list[str]:
    """Append the names that the file does not hold yet and return them. Raises WouldChange before it writes."""
    held = read_lines(file)
    changed = sorted(name for name in held if wanted.get(name) != held[name])
    if changed:
        raise WouldChange(f"{file.name}: {', '.join(changed)} would change or go")
    added = [name for name in wanted if name not in held]
    for name in added:
        if "\n" in name + wanted[name] or _SEPARATOR in name:
            raise ValueError(f"{file.name}: {name} does not fit on a line")
    with file.open("a", encoding="utf-8", newline="") as out:
        out.writelines(f"{name}{_SEPARATOR}{wanted[name]}\n" for name in added)
    return added


def add_file(file: Path, content: bytes) -> None:
    """Write a file that does not exist yet. Raises WouldChange where it does."""
    try:
        with file.open("xb") as out:
            out.write(content)
    except FileExistsError as error:
        raise WouldChange(f"{file.name} is there already") from error


def read_log(file: Path) -> list[FrozenEntry]:
    """Return a golden log, in order."""
    # Split at line feeds alone: U+2028 and its like are ordinary characters of a payload.
    lines = file.read_bytes().removesuffix(b"\n").split(b"\n")
    return [msgspec.json.decode(line, type=FrozenEntry) for line in lines]


def log_bytes(entries: list[FrozenEntry]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
