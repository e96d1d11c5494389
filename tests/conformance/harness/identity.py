"""The recipe by which a step gets its id, from the contract."""

import hashlib
import re
from pathlib import Path

import msgspec

_CONTRACT = Path(__file__).resolve().parents[3] / "docs" / "contract.md"
_VECTOR = re.compile(
    r"^\| (?P<kind>\w+) `(?P<target>[^`]*)`(?: occ (?P<occurrence>\d+))? `(?P<args>[^`]*)` "
    r"\| `(?P<canonical>[^`]*)` \| `(?P<args_hash>[0-9a-f]{64})` / `(?P<step_id>[0-9a-f]{64})` \|$",
    re.MULTILINE,
)
VECTORS_EXECUTION_ID = "0199aaaa-0000-7000-8000-0000000000ff"


class Vector(msgspec.Struct, frozen=True):
    """One row of the contract's table. `args` is the JSON text as it is sent."""

    kind: str
    target: str
    occurrence: int
    args: str
    canonical: str
    args_hash: str
    step_id: str


def vectors() -> list[Vector]:
    """The vectors of contract section 6."""
    rows = [found.groupdict() for found in _VECTOR.finditer(_CONTRACT.read_text())]
    return [
        Vector(
            kind=row["kind"],
            target="" if row["target"] == "(empty)" else row["target"],
            occurrence=int(row["occurrence"] or 0),
            args=row["args"],
            canonical=row["canonical"],
            args_hash=row["args_hash"],
            step_id=row["step_id"],
        )
        for row in rows
    ]


def args_hash_of(canonical: str) -> str:
    """The hash of args by their canonical JSON."""
    return hashlib.sha256(canonical.encode()).hexdigest()


def step_id_of(execution_id: str, kind: str, target: str, args_hash: str, occurrence: int) -> str:
    """The id of a step: SHA-256 of five fields, each after its length in bytes."""
    fields = [text.encode() for text in (execution_id, kind, target, args_hash, str(occurrence))]
    return hashlib.sha256(b"".join(b"%d:%b" % (len(field), field) for field in fields)).hexdigest()
