"""Golden files grow and never change: whoever writes one cannot do otherwise by accident."""

from pathlib import Path

import pytest
from msgspec import Raw

from tests.golden.files import FrozenEntry, WouldChange, add_file, add_lines, log_bytes, read_lines, read_log
from tests.golden.write import add_missing


def test_a_missing_name_is_added_behind_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    assert add_lines(file, {"a": "1"}) == ["a"]
    assert add_lines(file, {"b": "2: é\u2028 3", "a": "1"}) == ["b"]
    assert file.read_bytes() == "a: 1\nb: 2: é\u2028 3\n".encode()
    assert read_lines(file) == {"a": "1", "b": "2: é\u2028 3"}


@pytest.mark.parametrize("wanted", [{"a": "2", "b": "3"}, {"b": "3"}, {}], ids=["changed", "renamed", "removed"])
def test_a_name_that_is_there_is_never_changed_nor_removed(tmp_path: Path, wanted: dict[str, str]) -> None:
    file = tmp_path / "some.txt"
    add_lines(file, {"a": "1"})
    with pytest.raises(WouldChange, match="a would change or go"):
        add_lines(file, wanted)
    assert file.read_bytes() == b"a: 1\n"


def test_what_does_not_fit_on_a_line_is_not_written(tmp_path: Path) -> None:
    for name, text in [("a", "1\n2"), ("a\n", "1"), ("a: b", "1")]:
        with pytest.raises(ValueError, match="does not fit on a line"):
            add_lines(tmp_path / "some.txt", {name: text})
    assert not (tmp_path / "some.txt").exists()


def test_a_name_that_stands_twice_is_told(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("a: 1\na: 2\n", "utf-8")
    with pytest.raises(WouldChange, match="twice"):
        read_lines(file)


def test_a_log_that_is_there_is_never_written_again(tmp_path: Path) -> None:
    file = tmp_path / "log_v1.jsonl"
    add_file(file, b"one\n")
    with pytest.raises(WouldChange, match="is there already"):
        add_file(file, b"another\n")
    assert file.read_bytes() == b"one\n"


def test_a_log_is_read_with_the_bytes_that_were_written(tmp_path: Path) -> None:
    lines = [
        FrozenEntry(seq=1, stored_at=2, payload=Raw('{"n": 1.0,"n":1e2,"t":"\u2028"}'.encode())),
        FrozenEntry(seq=2, stored_at=3, payload=Raw(b"null"), is_repeated=True, parked="why"),
    ]
    add_file(tmp_path / "log.jsonl", log_bytes(lines))
    assert read_log(tmp_path / "log.jsonl") == lines


def test_everything_is_written_once_and_then_nothing(tmp_path: Path) -> None:
    added = add_missing(tmp_path)
    assert "log_v1.jsonl" in added
    assert "webhook.txt: body" in added
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert add_missing(tmp_path) == []
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_frozen_log_stays_though_its_story_is_told_otherwise(tmp_path: Path) -> None:
    add_missing(tmp_path)
    log = tmp_path / "log_v1.jsonl"
    log.write_bytes(b"{}\n")
    assert add_missing(tmp_path) == []
    assert log.read_bytes() == b"{}\n"
