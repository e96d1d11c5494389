"""One release against one kernel: its agents' processes, its `Client`, and the registrations that join them."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import msgspec

from tests.reference.client import Caller, Execution
from tests.reference.stage import Stage
from tests.support.environments import Environment
from tests.support.wait import NotInTime, wait_until

SCRIPTS = Path(__file__).with_name("agents")
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
EVERYDAY_GATES = ("returns", "waits", "long")
SECRET = "a-secret-of-the-reference-agents"
# Starting a process and one delivery; not a bound on the kernel's speed, which other tests have.
WAIT_SECONDS_MAX = 60.0
REQUEST_SECONDS_MAX = 35.0

Value = TypeVar("Value")


class Release(msgspec.Struct, frozen=True):
    """A published release and what of its behaviour the tests have to know beforehand."""

    version: str
    signs_v1: bool
    # False: every 30 seconds, whatever the lease.
    heartbeats_by_the_lease: bool
    # What a request for an execution that has ended raises.
    ended_error: str
    publishes_metadata: bool = False
    sends_create_key: bool = False

    @property
    def environment(self) -> Environment:
        return Environment(f"rebuno-{self.version}", (f"rebuno=={self.version}",), CONSTRAINTS)


RELEASES = (
    Release("0.14.0", signs_v1=False, heartbeats_by_the_lease=False, ended_error="APIError"),
    Release("0.16.0", signs_v1=False, heartbeats_by_the_lease=True, ended_error="Terminated"),
    Release("0.17.0", signs_v1=True, heartbeats_by_the_lease=True, ended_error="Terminated"),
    Release("0.21.0", signs_v1=True, heartbeats_by_the_lease=True, ended_error="Terminated"),
    Release(
        "0.29.2",
        signs_v1=True,
        heartbeats_by_the_lease=True,
        ended_error="Terminated",
        publishes_metadata=True,
        sends_create_key=True,
    ),
)


class Kernel(msgspec.Struct, frozen=True):
    """Where the kernel under test listens."""

    url: str
    api_key: str
    lease_seconds: int


class AgentProcess:
    """A place where an agent listens, and the process that serves it. The place outlives the process."""

    def __init__(self, agent_id: str, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._command = command
        self._environment = environment | {"STAGE_LISTENER": str(self._listener.fileno()), "STAGE_AGENT_ID": agent_id}
        self._process: subprocess.Popen[bytes] | None = None
        self.agent_id = agent_id
        self.log = log
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment,
                pass_fds=[self._listener.fileno()],
            )

    def kill(self) -> None:
        """`kill -9`: no handler of the process runs, no answer leaves."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self._process = None

    def has_died(self) -> bool:
        """Whether the process ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def is_idle(self) -> bool:
        """True once every handler of the process has ended; the answer waits for that."""
        return httpx.get(f"{self.url}/idle", timeout=WAIT_SECONDS_MAX, trust_env=False).is_success

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        self._listener.close()


class Watched:
    """The deltas of an execution, as one observer sees them."""

    def __init__(self, response: httpx.Response) -> None:
        self.deltas: list[dict[str, Any]] = []
        self.has_ended = False
        self._lines = response.iter_lines()
        # The comment at once: from here on nothing is missed.
        next(self._lines)
        self._thread = threading.Thread(target=self._read, name="observer", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._lines:
            if line == "event: end":
                self.has_ended = True
                return
            if line.startswith("data: "):
                self.deltas.append(msgspec.json.decode(line.removeprefix("data: ")))

    def join(self) -> None:
        self._thread.join(REQUEST_SECONDS_MAX)


class Deployment:
    """What a test holds: agents of one release, registered with one kernel, and the release's own `Client`.

    The everyday agent runs from the start; the others are started by the scenarios that end them.
    """

    def __init__(self, release: Release, kernel: Kernel, folder: Path) -> None:
        self.release = release
        self.kernel = kernel
        self._folder = folder
        self._interpreter = release.environment.interpreter()
        self._logs: list[Path] = []
        self._agents: list[AgentProcess] = []
        self._is_closed = False
        folder.mkdir(parents=True)
        with ExitStack() as closing:
            self._closing = closing
            bearer = {"Authorization": f"Bearer {kernel.api_key}"}
            # No proxy of the surroundings comes between the test and a server on this machine.
            admin = httpx.Client(base_url=kernel.url, headers=bearer, timeout=REQUEST_SECONDS_MAX, trust_env=False)
            self._admin = closing.enter_context(admin)
            environment = self._environment() | {"REBUNO_API_KEY": kernel.api_key}
            self.client = closing.enter_context(Caller(self._interpreter, environment, self._log("caller")))
            self.stage = self.new_stage("everyday", *EVERYDAY_GATES)
            self.everyday = self.agent("everyday", self.stage)
            self.register(self.everyday)
            self.everyday.start()
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._closing.close()

    def new_stage(self, name: str, *gates: str) -> Stage:
        """A folder for agents, with these gates shut."""
        stage = Stage(self._folder / name, gates)
        self._closing.callback(stage.close)
        return stage

    def agent(self, script: str, stage: Stage, role: str = "only") -> AgentProcess:
        """A place for the agent that this script serves; neither registered nor started."""
        environment = self._environment() | {
            "REBUNO_AGENT_SECRET": SECRET,
            "STAGE_FOLDER": str(stage.folder),
            "STAGE_ROLE": role,
        }
        command = [str(self._interpreter), str(SCRIPTS / f"{script}.py")]
        agent_id = f"{script}-{self.release.version}"
        process = AgentProcess(agent_id, command, environment, self._log(f"{script}-{role}"))
        self._agents.append(process)
        self._closing.callback(process.close)
        return process

    def register(self, process: AgentProcess) -> None:
        """Make this process the one that the webhooks of its agent go to, from now on."""
        agent = {
            "id": process.agent_id,
            "webhook_url": f"{process.url}/webhook",
            "secret": SECRET,
            "require_v1": self.release.signs_v1,
        }
        self._admin.post("/v0/agents", json=agent).raise_for_status()

    def registered(self, agent_id: str) -> dict[str, Any]:
        """The agent as the kernel shows it."""
        return self._admin.get(f"/v0/agents/{agent_id}").raise_for_status().json()

    def load_policy(self, agent_id: str, bundle: str) -> None:
        self._admin.post(f"/v0/policies/{agent_id}", json={"bundle": bundle}).raise_for_status()

    def grant(self, approval_id: str) -> None:
        """As a person would who has no client of ours: one plain request."""
        self._admin.post(f"/v0/approvals/{approval_id}/grant", json={}).raise_for_status()

    @contextmanager
    def watched(self, execution_id: str) -> Iterator[Watched]:
        """Watch the deltas of an execution until the block ends, which is after the execution did."""
        with self._admin.stream("GET", f"/v0/executions/{execution_id}/stream") as response:
            response.raise_for_status()
            watched = Watched(response)
            yield watched
            watched.join()

    def wait(self, condition: Callable[[], Value], description: str, seconds: float = WAIT_SECONDS_MAX) -> Value:
        """`wait_until`, over as soon as a process is missing, with the ends of the logs on the failure."""

        def look() -> Value:
            if self._is_closed:
                raise RuntimeError(f"the test has ended while a run waited for {description}")
            if any(agent.has_died() for agent in self._agents):
                raise RuntimeError(f"an agent process ended by itself while a run waited for {description}")
            return condition()

        try:
            return wait_until(look, f"{description} ({self.release.version})", deadline_seconds=seconds)
        except (NotInTime, RuntimeError) as error:
            for log in self._logs:
                error.add_note(f"--- {log.name}:\n{log.read_text()[-2000:] if log.exists() else ''}")
            raise

    def everyday_run(self, given: object) -> Execution:
        """The end of one run of the everyday agent, created by the release's own client."""
        return self.ended(self.client.create(self.everyday.agent_id, given).id)

    def ended(self, execution_id: str) -> Execution:
        """The execution once it has ended."""
        self.wait(lambda: self.client.get(execution_id).has_ended, f"the end of execution {execution_id}")
        return self.client.get(execution_id)

    def _log(self, name: str) -> Path:
        log = self._folder / f"{name}.txt"
        self._logs.append(log)
        return log

    def _environment(self) -> dict[str, str]:
        """Only what the processes need: nothing of the test's own environment can stand in for an argument."""
        return {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "REBUNO_URL": self.kernel.url}
