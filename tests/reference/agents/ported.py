"""An agent for the published client that uses its everyday names. A test changes the import, and nothing else."""
# The client is installed in the environment this runs in, not in the one that checks types.
# pyright: reportMissingImports=false

import asyncio
import os
import socket
import sys
import threading

import uvicorn
from rebuno import Agent, PolicyError, RateLimited, Result, ToolError, execution, step, tool, wrap_tool


@tool
async def search(query: str, limit: int = 2) -> list[str]:
    return [f"{query} {number}" for number in range(limit)]


@tool("pages.read", idempotency="at_most_once")
async def read(title: str) -> dict[str, object]:
    return {"title": title, "words": len(title)}


@tool
async def explode(reason: str) -> None:
    raise ValueError(reason)


@tool
async def publish(page: str) -> str:
    return page


async def refused(page: str) -> str:
    """What a model is told of a denied call; the client writes its own code before the reason."""
    return (await publish(page=page)).partition(" reason:")[0]


@tool
async def mail(to: str) -> str:
    return to


fetch = wrap_tool(
    "web.fetch",
    lambda args: {"body": args["url"]},
    args_schema={"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
    transform_args=lambda args: args | {"follow": False},
    to_result=lambda answer: answer["body"],
)


async def everything(topic: str) -> Result:
    found = await asyncio.gather(search(topic), search(topic), search(topic, limit=1))
    side = await step("coin", lambda: "heads")
    page = await read(title=topic)
    body = await fetch(url=f"https://{topic}.example/\u00e9?a=1&b=<2>")
    said: list[object] = []
    try:
        await explode("too warm")
    except ToolError as error:
        # The client writes the tool's name before the text; the first argument is the text alone.
        said += [error.tool_id, error.args[0]]
    try:
        await step("secret", lambda: 1, {"level": 2})
    except PolicyError as error:
        said += [error.args[0], error.rule_id]
    denied = await refused("one")
    context = execution()
    about = [context.input, context.dispatch_attempt, len(context.id)]
    return Result(output=[found, side, page, body, said, denied, about], state={"seen": topic})


async def ported(scenario: str, topic: str = "cats") -> object:
    match scenario:
        case "everything":
            return await everything(topic)
        case "exception":
            await search(topic)
            raise LookupError("nothing: nowhere")
        case "tool error":
            return await explode("too cold")
        case "denied tool":
            return await refused(topic)
        case "denied step":
            return await step("secret", lambda: 1)
        case "denied step in words":
            return await step("sunday", lambda: 1)
        case "rate limited":
            return [await mail(to="a"), await mail(to="b")]
        case "rate limited and caught":
            try:
                return [await mail(to="a"), await mail(to="b")]
            except RateLimited as error:
                return error.reason
        case _:
            raise KeyError(scenario)


def main() -> None:
    agent = Agent(os.environ["STAGE_AGENT_ID"])
    agent.bind(ported)
    # The test holds the other end of standard input: no agent outlives it, whatever ended it.
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    listener = socket.socket(fileno=int(os.environ["STAGE_LISTENER"]))
    uvicorn.Server(uvicorn.Config(agent.app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
