"""An agent that runs shell commands in the folder it is started in, and asks a person before it runs a dangerous one.

    stepwell dev --config examples/agents.yaml      # knows the agent, and loads shell_policy.yaml for it
    python -m examples.shell
    stepwell approval list                          # and: show ID, grant ID, deny ID --reason TEXT

The policy decides about every command. To ask is no matter of this file: a call that has to wait ends the attempt, and
after the decision the next attempt replays what was run before.
"""

import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass

from stepwell import Agent, tool

COMMAND_SECONDS_MAX = 20
OUTPUT_BYTES_MAX = 16 * 1024


@dataclass
class Ended:
    exit_code: int | None
    """None where it was ended for taking too long."""
    output: str


# Nobody knows whether a command had run whose process died meanwhile, so it is never run again.
@tool(idempotency="at_most_once")
def shell(command: str) -> Ended:
    print(f"$ {command}")
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "GIT_OPTIONAL_LOCKS": "0"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(COMMAND_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            # With everything that it has started.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            exit_code = None
        output.seek(0)
        return Ended(exit_code, output.read(OUTPUT_BYTES_MAX).decode(errors="replace"))


def handle(commands: list[str]) -> list[Ended | str]:
    # Of a command that is denied, by a rule or by a person, the reason is returned as text: a model can read it.
    return [shell(command) for command in commands]


if __name__ == "__main__":
    Agent("operator").run(handle)
