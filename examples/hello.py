"""The agent of the README. Every call of `greet` is a step, so nobody is greeted twice, whatever the process dies of.

It takes the secret of its registration from `REBUNO_AGENT_SECRET`, and listens on port 5000.
"""

import time

from stepwell import Agent, tool


@tool
def greet(name: str) -> None:
    time.sleep(1)  # a tool that takes its time
    print(f"hello, {name}")


def handle(names: list[str]) -> str:
    return f"{len([greet(name) for name in names])} greeted"


if __name__ == "__main__":
    Agent("hello").run(handle)
