"""What README and CONTRIBUTING tell people to type works: the quickstart is run, and every make target exists."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kernel.embedded.ports import free_port
from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["Ada", "Grace", "Hedy", "Mary", "Rosa"]
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


def section(title: str) -> str:
    return text_of("README.md").partition(f"## {title}\n")[2].partition("\n## ")[0]


@contextmanager
def started(command: str, environment: Mapping[str, str], output: Path) -> Iterator[None]:
    """Run a command of the README for the time of the block."""
    program, *rest = shlex.split(command)
    start = {"stepwell": [sys.executable, "-m", "kernel.cli"], "python": [sys.executable]}[program]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*start, *rest], cwd=output.parent, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(STOP_SECONDS_MAX)


def is_ready(port: int) -> bool:
    return httpx.get(f"http://127.0.0.1:{port}/v0/ready", trust_env=False).status_code == 200


def ended_at(address: str) -> Any:
    """Return the execution once it has ended."""
    execution = httpx.get(address, trust_env=False).json()
    return execution if execution["status"] != "running" else None


def recipe(target: str) -> str:
    """Return the lines of a target of the Makefile, as make would echo them."""
    lines = text_of("Makefile").partition(f"\n{target}:")[2].splitlines()[1:]
    ends = next((number for number, line in enumerate(lines) if not line.startswith("\t")), len(lines))
    return "\n".join(line.strip().removeprefix("@") for line in lines[:ends])


# ---------------------------------------------------------------- the agent in ten lines


def test_the_agent_of_the_readme_is_the_example_and_has_ten_lines() -> None:
    shown = section("An agent in ten lines").partition("```python\n")[2].partition("```")[0]
    source = text_of("examples/hello.py")
    docstring = ast.parse(source).body[0]

    assert shown.strip() == "\n".join(source.splitlines()[docstring.end_lineno :]).strip()
    assert len([line for line in shown.splitlines() if line.strip()]) <= 10


def test_the_agent_of_the_readme_runs_by_the_commands_that_are_given(tmp_path: Path) -> None:
    # Given the commands as they stand there, with ports that nobody has.
    door, port = free_port(), free_port()
    below = section("An agent in ten lines").rpartition("```")[2]
    serve, work, ask = re.findall(r"^    (?!make)(\S.*)$", below.replace("8080", str(door)), re.MULTILINE)
    manifest = tmp_path / "agents.yaml"
    text = text_of("examples/agents.yaml").replace(":5000/", f":{port}/").replace("shell_policy.yaml", "policy.yaml")
    manifest.write_text(text, "utf-8")
    (tmp_path / "policy.yaml").write_text(text_of("examples/shell_policy.yaml"), "utf-8")

    plain = {name: value for name, value in os.environ.items() if not name.startswith(("STEPWELL_", "REBUNO_"))}
    given = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "STEPWELL_LISTEN_ADDR": f"127.0.0.1:{door}"}
    given |= {"REBUNO_URL": f"http://127.0.0.1:{door}", "REBUNO_AGENT_ADDR": f"127.0.0.1:{port}"}
    given |= {"REBUNO_AGENT_SECRET": "any-text-of-16-bytes"}
    environment = plain | given

    with (
        started(serve.replace("examples/agents.yaml", str(manifest)), environment, tmp_path / "dev.txt"),
        started(work, environment, tmp_path / "agent.txt"),
    ):
        wait_until(lambda: is_ready(door), "Stepwell to be ready", deadline_seconds=60, retry_on=httpx.HTTPError)
        _, address, _, body = shlex.split(ask)
        # As curl sends what it is given.
        form = {"content-type": "application/x-www-form-urlencoded"}
        created = httpx.post(address, content=body, headers=form, trust_env=False)
        assert created.status_code < 300, created.text
        ended = wait_until(
            lambda: ended_at(f"{address}/{created.json()['id']}"), "the execution to end", deadline_seconds=60
        )

    assert (ended["status"], ended["output"]) == ("completed", "2 greeted")
    assert (tmp_path / "agent.txt").read_text("utf-8").splitlines()[-2:] == ["hello, Ada", "hello, Grace"]


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
    assert f"The agent has greeted 5 times: {', '.join(NAMES)}." in printed
    assert_three_are_greeted_before_the_kill_and_two_after(printed)
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


def assert_three_are_greeted_before_the_kill_and_two_after(printed: str) -> None:
    before, _, after = printed.partition("Killed the agent")
    greeted = [re.findall(r"^  agent \| hello, (\w+)$", part, re.MULTILINE) for part in (before, after)]
    assert greeted == [NAMES[:3], NAMES[3:]]


def assert_the_event_log_shows_two_attempts(log: str) -> None:
    events = list(_EVENT.finditer(log))
    assert [int(event["seq"]) for event in events] == list(range(1, len(events) + 1))
    told = [(event["family"], re.sub(r" +", " ", event["what"])) for event in events]
    assert [what for family, what in told if family == "dispatch" and "acknowledged" in what] == [
        "acknowledged by the agent attempt 1",
        "acknowledged by the agent attempt 2",
    ]
    assert [what for family, what in told if family == "step" and what.startswith("succeeded")] == [
        f'succeeded greet {{"name": "{name}"}}' for name in NAMES
    ]
    resumed = told.index(("dispatch", "acknowledged by the agent attempt 2"))
    assert len([what for _, what in told[:resumed] if what.startswith("succeeded")]) == 3
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
