"""What README and CONTRIBUTING tell people to type works: the quickstart is run, and every make target exists."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = ["first", "second", "third", "fourth", "fifth"]
RUN_SECONDS_MAX = 240
STOP_SECONDS_MAX = 60

_RULE = re.compile(r"^([a-z]+):[^=]", re.MULTILINE)
_VARIABLE = re.compile(r"^([A-Z]+) *\?=", re.MULTILINE)
_EVENT = re.compile(r"^ *(?P<seq>\d+) +[\d.]+ s  (?P<family>\w+) +(?P<what>\S.*)$", re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of every make command on a page: of indented lines, and of code in a sentence."""
    text = text_of(page)
    found = re.findall(r"^    (make\b.*)$", text, re.MULTILINE) + re.findall(r"`(make\b[^`]*)`", text)
    for command in found:
        yield shlex.split(command, comments=True)


def recipe(target: str) -> str:
    """Return the lines of a target of the Makefile, as make would echo them."""
    lines = text_of("Makefile").partition(f"\n{target}:")[2].splitlines()[1:]
    ends = next((number for number, line in enumerate(lines) if not line.startswith("\t")), len(lines))
    return "\n".join(line.strip().removeprefix("@") for line in lines[:ends])


# ---------------------------------------------------------------- the quickstart


def test_the_quickstart_of_the_readme_is_one_command_and_once_ends_it() -> None:
    assert ["make", "run"] in commands("README.md")
    assert ["make", "run", "ONCE=1"] in commands("README.md")
    assert recipe("run") == "ONCE='$(ONCE)' $(BIN)/python -m examples.demo"


def test_the_quickstart_does_what_the_readme_says(tmp_path: Path) -> None:
    # Given the settings of a reader, not those of whoever runs the tests.
    given = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    output = tmp_path / "output.txt"

    exit_code = run_once(given | {"ONCE": "1", "TMPDIR": str(tmp_path)}, output)

    printed = output.read_text("utf-8")
    assert exit_code == 0, printed
    assert f"The file has 5 lines: {', '.join(LINES)}." in printed
    assert_three_are_replayed_and_two_are_done(printed)
    assert_the_event_log_shows_two_attempts(printed.partition("The event log:")[2])
    assert [each.name for each in tmp_path.iterdir()] == ["output.txt"], "it leaves its data behind"


def run_once(environment: Mapping[str, str], output: Path) -> int:
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            return process.wait(RUN_SECONDS_MAX)
        finally:
            # It ends its children in order when it is asked to; killed outright it could not.
            process.terminate()
            process.wait(STOP_SECONDS_MAX)


def assert_three_are_replayed_and_two_are_done(printed: str) -> None:
    told = re.findall(r'attempt (\d): append_line {"line": "(\w+)"} (done|replayed)', printed)
    assert told == [
        *(("1", line, "done") for line in LINES[:3]),
        *(("2", line, "replayed") for line in LINES[:3]),
        *(("2", line, "done") for line in LINES[3:]),
    ]
    assert printed.index('"third"} done') < printed.index("Killed the agent") < printed.index('"first"} replayed')


def assert_the_event_log_shows_two_attempts(log: str) -> None:
    events = list(_EVENT.finditer(log))
    assert [int(event["seq"]) for event in events] == list(range(1, len(events) + 1))
    told = [(event["family"], re.sub(r" +", " ", event["what"])) for event in events]
    assert [what for family, what in told if family == "dispatch" and "acknowledged" in what] == [
        "acknowledged by the agent attempt 1",
        "acknowledged by the agent attempt 2",
    ]
    assert [what for family, what in told if family == "step" and what.startswith("succeeded")] == [
        f'succeeded append_line {{"line": "{line}"}}' for line in LINES
    ]
    assert told[-1][0] == "execution"
    assert told[-1][1].startswith("completed")


# ---------------------------------------------------------------- make


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_command_names_targets_and_variables_that_exist(page: str) -> None:
    makefile = text_of("Makefile")
    targets, variables = set(_RULE.findall(makefile)), set(_VARIABLE.findall(makefile))
    named = [word for command in commands(page) for word in command[1:]]
    assert named, f"{page} names no make command"
    unknown = [word for word in named if "=" not in word and word not in targets]
    unknown += [word for word in named if "=" in word and word.partition("=")[0] not in variables]
    assert unknown == []


def test_every_target_says_what_it_is_for_and_is_not_taken_for_a_file() -> None:
    makefile = text_of("Makefile")
    phony = re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)[0].split()
    assert sorted(phony) == sorted(_RULE.findall(makefile))
    assert re.findall(r"^([a-z]+):.*## \S", makefile, re.MULTILINE) == _RULE.findall(makefile)


def test_every_page_the_readme_leads_to_exists() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        named = re.findall(r"`((?:docs|tests|examples|deploy|schemas|kernel|workers)/[\w./-]+)`", text_of(page))
        named += re.findall(r"\]\((?!https?:|#)([^)#]+)", text_of(page))
        assert [name for name in named if not (ROOT / name).exists()] == []
