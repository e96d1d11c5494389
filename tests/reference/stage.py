"""Where agents leave what they did and wait to be let on: a folder that outlives every process of theirs."""

import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec


class Note(msgspec.Struct, frozen=True):
    """One line of the journal: which attempt, in which process, did what."""

    what: str
    name: str
    role: str
    pid: int
    execution: str
    dispatch: str
    attempt: int
    facts: dict[str, Any]


class Stage:
    """A journal that agents append to, and gates. A gate is a file that is locked here and that agents wait to lock."""

    def __init__(self, folder: Path, gates: tuple[str, ...]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._shut = {gate: self._closed(gate) for gate in gates}

    def open(self, gate: str) -> None:
        """Let whoever waits at the gate, or comes to it later, go on."""
        os.close(self._shut.pop(gate))

    def close(self) -> None:
        while self._shut:
            os.close(self._shut.popitem()[1])

    def notes(self, what: str, name: str = "", execution: str = "") -> list[Note]:
        """The notes of one sort, oldest first; of one name and one execution where those are given."""
        journal = self.folder / "journal.jsonl"
        lines = journal.read_bytes().splitlines() if journal.exists() else []
        return [
            note
            for note in (msgspec.json.decode(line, type=Note) for line in lines)
            if note.what == what and name in {"", note.name} and execution in {"", note.execution}
        ]

    def _closed(self, gate: str) -> int:
        file = os.open(self.folder / f"{gate}.gate", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
