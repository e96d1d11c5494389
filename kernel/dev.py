"""`stepwell dev`: the whole server on one machine, with embedded NATS and Valkey and their data in one folder.

Open to whoever reaches its port, so never for production.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from kernel.control.sealing import generated_master_key
from kernel.embedded import EmbeddedServers
from kernel.main import ALL_ROLES, Arguments, agents_of, run, run_roles, settings_of
from kernel.process import Stops

DATA_PATH = Path(".stepwell")
MASTER_KEY_NAME = "master.key"


def run_dev(arguments: Arguments, *, data_path: Path, say: Callable[[str], None]) -> int:
    """Run until a signal and return the exit code. `say` shows a line to the person who started it."""

    async def work(stops: Stops) -> None:
        settings = settings_of("dev", arguments)
        agents = await agents_of(arguments, settings)
        if not settings.master_key:
            master_key = generated_master_key(data_path / MASTER_KEY_NAME)
            settings = msgspec.structs.replace(settings, master_key=master_key)
        servers = EmbeddedServers(data_path)
        if await stops.unless_asked(_true_when_started(servers)) is None:
            return
        try:
            settings = msgspec.structs.replace(settings, nats_url=servers.nats.url, redis_url=servers.valkey.url)
            await run_roles(
                ALL_ROLES,
                settings,
                agents=agents,
                stops=stops,
                started=lambda url: say(_welcome(url, data_path, [agent.id for agent in agents])),
            )
        finally:
            await servers.stop()

    return run(work)


async def _true_when_started(servers: EmbeddedServers) -> bool:
    await servers.start()
    return True


def _welcome(url: str, data_path: Path, agent_ids: list[str]) -> str:
    agent_id = agent_ids[0] if agent_ids else "hello"
    lines = [
        f"Stepwell is running at {url}",
        f"  data in {data_path.resolve()}, NATS and Valkey inside; stop with Ctrl-C",
        "  no keys are asked for: do not let others reach this port",
    ]
    if not agent_ids:
        lines += [
            "",
            "Register an agent that listens on port 9000:",
            f"  curl {url}/v0/agents -d '"
            '{"id":"hello","webhook_url":"http://localhost:9000/","secret":"a-secret-for-dev"}\'',
        ]
    lines += [
        "",
        "Start an execution, and see its events:",
        f'  curl {url}/v0/executions -d \'{{"agent_id":"{agent_id}","input":{{"name":"world"}}}}\'',
        f"  curl {url}/v0/executions/<id>/events",
        "",
    ]
    return "\n".join(lines)
