"""A client: it creates an execution, reads it, and at times cancels it."""

from typing import Any

import msgspec

from tests.fault.history import Action, Answered, Asked
from tests.fault.simulation.agents import RETRIED, TRIES_MAX
from tests.fault.simulation.world import AGENT_ID, API_KEY, World

_BEARER = {b"authorization": f"Bearer {API_KEY}".encode()}


class Client:
    """Creates one execution, reads it, and at times cancels it."""

    def __init__(self, world: World, mark: str, *, has_key: bool, cancels: bool) -> None:
        self._world = world
        self._mark = mark
        self._has_key = has_key
        self._cancels = cancels
        self.execution_id = ""

    async def run(self) -> None:
        network, rng = self._world.network, self._world.rng
        await network.pause(2.5 * rng.random())
        for _ in range(TRIES_MAX if self._has_key else 1):
            key = f"key-{self._mark}" if self._has_key else ""
            body = {"agent_id": AGENT_ID, "input": {"mark": self._mark}}
            answered = await self.ask("create", "POST", "/v0/executions", body, key=key, marks=(self._mark,))
            if isinstance(answered.body, dict) and answered.status == 201:
                self.execution_id = answered.body["id"]
                break
            if answered.status not in RETRIED:
                break
            await network.pause(0.1 + 0.3 * rng.random())
        if self.execution_id:
            await self._look()

    async def _look(self) -> None:
        network, rng = self._world.network, self._world.rng
        path = f"/v0/executions/{self.execution_id}"
        cancels_at = rng.randrange(3) if self._cancels else -1
        for number in range(3):
            await network.pause(1.2 * rng.random())
            await self.ask("get", "GET", path)
            await self.ask("events", "GET", f"{path}/events?limit=200")
            if number == cancels_at:
                await self.ask("cancel", "POST", f"{path}/cancel")
                await self.ask("get", "GET", path)

    async def ask(
        self,
        action: Action,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        key: str = "",
        marks: tuple[str, ...] = (),
        execution_id: str = "",
    ) -> Answered:
        raw = b"" if body is None else msgspec.json.encode(body)
        asked = Asked(
            number=self._world.next_number(),
            at=self._world.loop.time(),
            who="client",
            action=action,
            execution_id=execution_id or self.execution_id,
            key=key,
            marks=marks,
        )
        headers = dict(_BEARER)
        if key:
            headers[b"idempotency-key"] = key.encode()
        return await self._world.call(asked, method=method, path=path, headers=headers, body=raw)
