"""An agent of which one process hangs past its lease and then, waking, goes on against every refusal."""
# The client is installed in the environment this runs in, not in the one that checks types.
# pyright: reportMissingImports=false

from rebuno import tool
from stage import ROLE, note, opened, opened_blocking, serve


@tool
async def record(name: str) -> str:
    note("effect", "record", name=name)
    return ROLE


@tool
async def stall() -> str:
    note("effect", "stall")
    if ROLE == "first":
        opened_blocking("first")
    else:
        await opened("second")
    return ROLE


async def stalled() -> object:
    heard: dict[str, object] = {"before": await record("before")}
    for name, call in (("stall", stall), ("after", lambda: record("after"))):
        try:
            heard[name] = await call()
        except BaseException as error:  # noqa: BLE001 - a handler that swallows everything is the point
            note("refused", name, error=type(error).__name__)
    return heard


if __name__ == "__main__":
    serve(stalled)
