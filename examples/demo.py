"""The demonstration behind `make run`: an agent is killed in the middle of its work and resumes without repeating any.

It starts `stepwell dev` and the agent of the README, `examples/hello.py`, kills the agent after its third tool call,
starts it again and shows what happened. With ONCE=1 it then exits: 0 only if every tool ran exactly once, over two
attempts.
"""

import http.client
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

LEASE_SECONDS = 10
NAMES = ("Ada", "Grace", "Hedy", "Mary", "Rosa")
KILLED_AFTER = 3
PORT = 8080
POLL_SECONDS = 0.1
PROGRESS_SECONDS = 5
START_SECONDS = 90
WORK_SECONDS = 60
STOP_SECONDS = 30
INTERRUPTED = 130

FAMILY_COLOURS = {"execution": "36", "dispatch": "33", "step": "32"}
VERBS = {"acked": "acknowledged by the agent"}


class Failed(Exception):
    """The demonstration did not go as it must."""


class Program:
    """A child process whose lines can be waited for."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], log: Path | None = None) -> None:
        self.name = name
        self.lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        """The lines that were taken from the queue."""
        self.log = log
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C reaches this program alone, which then ends its children in order.
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - said to the type checker: it is a pipe
        for line in self.process.stdout:
            if self.log is None:
                self.lines.put(line.rstrip())
            else:
                with self.log.open("a", encoding="utf-8") as file:
                    file.write(line)

    def next_line(self, wait_seconds: float) -> str | None:
        try:
            line = self.lines.get(timeout=wait_seconds)
        except queue.Empty:
            return None
        self.said.append(line)
        return line

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


class Stage:
    """Everything the demonstration has running."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port(PORT)
        self.agent_port = free_port()
        self.log = folder / "stepwell.log"
        self.secret = secrets.token_hex(16)
        self.kernel = Program(
            "stepwell",
            [sys.executable, "-m", "kernel.cli", "dev", "--port", str(self.port), "--data", str(folder / "data")],
            {"STEPWELL_DISPATCH_LEASE_TIMEOUT": f"{LEASE_SECONDS}s"},
            log=self.log,
        )
        self.agents: list[Program] = []
        """The one that works comes last."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def agent(self) -> Program:
        return self.agents[-1]

    def start_agent(self) -> None:
        environment = {
            "REBUNO_URL": self.url,
            "REBUNO_AGENT_SECRET": self.secret,
            "REBUNO_AGENT_ADDR": f"127.0.0.1:{self.agent_port}",
            # Its lines are shown as they come.
            "PYTHONUNBUFFERED": "1",
        }
        self.agents.append(Program("agent", [sys.executable, "-m", "examples.hello"], environment))
        wait_for(self.is_agent_listening, START_SECONDS, "the agent listens")

    def is_agent_listening(self) -> bool:
        if not self.agent.is_running:
            show_rest(self.agent)
            raise Failed("the agent has ended")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.agent_port)) == 0

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Make one request; in dev mode nothing needs a key."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=35)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer = response.read()
        except OSError as error:
            raise Failed(f"{method} {path} was not answered: {error}") from error
        finally:
            connection.close()
        if response.status >= 300:
            raise Failed(f"{method} {path} answered {response.status}: {answer.decode()}")
        return json.loads(answer or b"null")

    def is_ready(self) -> bool:
        if not self.kernel.is_running:
            raise Failed("stepwell dev has ended")
        try:
            self.call("GET", "/v0/ready")
        except Failed:
            return False
        return True

    def recorded(self, execution_id: str) -> int:
        """How many steps have a recorded outcome."""
        return len(self.call("GET", f"/v0/executions/{execution_id}/steps?status=succeeded"))

    def has_ended(self, execution_id: str) -> bool:
        return self.call("GET", f"/v0/executions/{execution_id}")["status"] not in ("running", "blocked")

    def stop(self) -> None:
        for program in (*self.agents, self.kernel):
            program.stop()


def main() -> int:
    """Run the demonstration and return the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    is_shown = False
    with tempfile.TemporaryDirectory(prefix="stepwell-demo-") as folder:
        stage = Stage(Path(folder))
        try:
            demonstrate(stage)
            is_shown = True
            if not os.environ.get("ONCE"):
                keep_serving(stage)
        except Failed as reason:
            say(f"\nThe demonstration failed: {reason}")
            show_log(stage.log)
            return 1
        except KeyboardInterrupt:
            say("\nStopping.")
        finally:
            stage.stop()
    return 0 if is_shown else INTERRUPTED


def demonstrate(stage: Stage) -> None:
    """Let the agent work, kill it, let it resume, and check what came of it."""
    say(f"Starting Stepwell on {stage.url}, with a lease of {LEASE_SECONDS} seconds.")
    wait_for(stage.is_ready, START_SECONDS, "Stepwell is ready")
    webhook_url = f"http://127.0.0.1:{stage.agent_port}/webhook"
    stage.call("POST", "/v0/agents", {"id": "hello", "webhook_url": webhook_url, "secret": stage.secret})
    say("Starting the agent, python -m examples.hello.")
    stage.start_agent()
    given = {"names": NAMES}
    execution_id = stage.call("POST", "/v0/executions", {"agent_id": "hello", "input": given})["id"]
    say(f"\nCreated execution {execution_id}: {len(NAMES)} tool calls, each greets somebody.")
    follow(stage.agent, lambda: stage.recorded(execution_id) >= KILLED_AFTER, f"{KILLED_AFTER} calls are recorded")

    stage.agent.kill()
    show_rest(stage.agent)
    say(f"\nKilled the agent (kill -9) after {KILLED_AFTER} tool calls, and started it again. The kernel gives the")
    say(f"work out anew when the lease of the killed one has run out, in up to {LEASE_SECONDS} seconds.")
    stage.start_agent()
    follow(stage.agent, lambda: stage.has_ended(execution_id), "the execution has ended")
    show_rest(stage.agent)

    events = stage.call("GET", f"/v0/executions/{execution_id}/events?limit=1000")
    steps = stage.call("GET", f"/v0/executions/{execution_id}/steps")
    say("\nThe event log:")
    for line in event_lines(events, steps):
        say(line)
    check([line for agent in stage.agents for line in agent.said], events)


def check(said: list[str], events: list[Any]) -> None:
    """Raise Failed unless every tool ran exactly once, over exactly two attempts."""
    greeted = [line.removeprefix("hello, ") for line in said if line.startswith("hello, ")]
    say(f"\nThe agent has greeted {len(greeted)} times: {', '.join(greeted)}.")
    if greeted != list(NAMES):
        raise Failed(f"it should have greeted {', '.join(NAMES)}, once each and in this order")
    attempts = [event["payload"]["attempt"] for event in events if event["type"] == "dispatch.acked"]
    if attempts != [1, 2]:
        raise Failed(f"two attempts should have been acknowledged, and these were: {attempts}")
    if events[-1]["type"] != "execution.completed":
        raise Failed(f"the execution should have been completed, and its last event is {events[-1]['type']}")
    say("Two attempts, and every tool ran exactly once.")


def keep_serving(stage: Stage) -> None:
    """Leave it all running for whoever watches, until Ctrl-C."""
    body = json.dumps({"agent_id": "hello", "input": {"names": ["Vera"]}})
    say(f"\nStepwell keeps serving on {stage.url} until Ctrl-C, and so does the agent. Its API: {stage.url}/docs")
    say(f"Give the agent more to do:  curl {stage.url}/v0/executions -d '{body}'")
    while stage.kernel.is_running and stage.agent.is_running:
        show(stage.agent.next_line(1.0))
    raise Failed("stepwell dev or the agent has ended by itself")


# ---------------------------------------------------------------- waiting


def wait_for(condition: Callable[[], bool], wait_seconds: float, what: str) -> None:
    """Wait for a condition, and say so every few seconds."""
    started = said = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now - started > wait_seconds:
            raise Failed(f"waited {wait_seconds} seconds until {what}")
        if now - said > PROGRESS_SECONDS:
            said = now
            say(f"  … waiting until {what}")
        time.sleep(POLL_SECONDS)


def follow(agent: Program, condition: Callable[[], bool], what: str) -> None:
    """Show the agent's lines until the condition holds; count the seconds of silence."""
    started = heard = time.monotonic()
    told_seconds = 1
    while not condition():
        line = agent.next_line(POLL_SECONDS)
        show(line)
        now = time.monotonic()
        if line is not None:
            heard, told_seconds = now, 1
        elif int(now - heard) > told_seconds:
            told_seconds = int(now - heard)
            say(f"  … {told_seconds} s")
        if not agent.is_running:
            show_rest(agent)
            raise Failed("the agent has ended")
        if now - started > WORK_SECONDS:
            raise Failed(f"waited {WORK_SECONDS} seconds until {what}")


# ---------------------------------------------------------------- showing


def event_lines(events: list[Any], steps: list[Any]) -> list[str]:
    """Return the event log as aligned lines in plain words."""
    names = {step["step_id"]: f"{step['target']} {json.dumps(step['args'])}" for step in steps}
    started = seconds_of(events[0]["occurred_at"])
    lines: list[str] = []
    for event in events:
        family, _, verb = event["type"].partition(".")
        after_seconds = (seconds_of(event["occurred_at"]) - started) % 86_400
        what = f"{family:<9}  {VERBS.get(verb, verb):<25}"
        coloured = colour(what, FAMILY_COLOURS.get(family, "0"))
        line = f"{event['event_seq']:>4}  {after_seconds:7.2f} s  {coloured}  {detail(event['payload'], names)}"
        lines.append(line.rstrip())
    return lines


def detail(payload: dict[str, Any], names: dict[str, str]) -> str:
    """Return what is worth knowing of an event besides its type."""
    parts = [names.get(payload.get("step_id", ""), "")]
    if payload.get("attempt"):
        parts.append(f"attempt {payload['attempt']}")
    if payload.get("output") is not None:
        parts.append(json.dumps(payload["output"]))
    parts.append(payload.get("reason", ""))
    return ", ".join(part for part in parts if part)


def seconds_of(moment: str) -> float:
    """Return the seconds into its day of a time such as 2026-01-02T03:04:05.678901Z."""
    hours, minutes, seconds = moment.partition("T")[2].rstrip("Z").split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def colour(text: str, code: str) -> str:
    is_wanted = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\033[{code}m{text}\033[0m" if is_wanted else text


def show(line: str | None) -> None:
    if line is not None:
        say(f"  agent | {line}")


def show_rest(agent: Program) -> None:
    """Show the lines that the agent has said and that were not shown yet."""
    while (line := agent.next_line(POLL_SECONDS)) is not None:
        show(line)


def show_log(log: Path) -> None:
    """Print the end of the kernel's log."""
    if log.exists():
        say("The end of Stepwell's log:")
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]:
            say(f"  {line}")


def say(line: str) -> None:
    print(line, flush=True)


# ---------------------------------------------------------------- the machine


def free_port(wanted: int = 0) -> int:
    """Return the wanted port where nobody has it, else any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
        return probe.getsockname()[1]


def interrupt(_number: int, _frame: object) -> NoReturn:
    """End as by Ctrl-C, so that no child is left behind."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
