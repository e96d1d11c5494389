"""A scripted agent. It does what real ones do: settle, repeat with the key, heartbeat, crash, come back.

What an execution does is fixed by its input, so that every attempt makes the same calls.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from kernel.domain.signatures import sign_request
from tests.fault.history import LOST, Action, Answered, Asked, Delivered, Effect, Settled
from tests.fault.simulation.virtual import Process
from tests.fault.simulation.world import AGENT_ID, SECRET, SETTINGS, World
from workers.webhook import TIMEOUT, UNREACHABLE, Undelivered
from workers.webhook import Delivered as WasDelivered

TRIES_MAX = 4
RETRIED = (LOST, 503, 504)
PATIENCE_SECONDS = SETTINGS.lease_seconds * 2
"""An attempt that gave up sooner would not see what becomes of its lease in an outage."""
BEAT_SECONDS = SETTINGS.lease_seconds / 6
CHATTY = 0.04
CONVERSATION = '["' + "said " * 4000 + '"]'
"""Long enough to stand in pieces beside its shard, and short enough to be read on the loop."""


class Call(msgspec.Struct, frozen=True):
    """One call of a script. `count` of them are made at once, all alike."""

    target: str
    args: str
    kind: str = "tool_call"
    count: int = 1
    is_at_most_once: bool = False
    fails: bool = False
    settles: bool = False
    """Whether its outcome travels with the next request instead of one of its own."""


class Script(msgspec.Struct, frozen=True):
    calls: tuple[Call, ...]
    fails: bool


class Stopped(Exception):
    """This attempt goes no further: superseded, over, or out of tries."""


def make_script(rng: random.Random) -> Script:
    calls: list[Call] = []
    for number in range(rng.choice((1, 2, 2, 3, 4))):
        is_parallel = rng.random() < 0.25
        is_at_most_once = rng.random() < 0.35
        is_chat = rng.random() < CHATTY
        calls.append(
            Call(
                # The same call twice in a row is a second occurrence of it.
                target=f"tool-{number - (rng.random() < 0.2)}",
                args=rng.choice(("null", '{"a":1}', '{"a":"x"}')) if not is_chat else CONVERSATION,
                kind="llm_call" if is_chat else "tool_call",
                count=rng.choice((2, 3)) if is_parallel else 1,
                is_at_most_once=is_at_most_once,
                fails=rng.random() < 0.15,
                settles=not is_parallel and not is_at_most_once and rng.random() < 0.5,
            )
        )
    return Script(calls=tuple(calls), fails=rng.random() < 0.1)


class Instance:
    """One process of the agent, and its handlers by execution."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.handlers: dict[str, tuple[int, asyncio.Task[None]]] = {}


class Agent:
    """The agent: two processes behind one address, either of which takes a webhook."""

    INSTANCES = 2

    def __init__(self, world: World, scripts: dict[str, Script]) -> None:
        self._world = world
        self._scripts = scripts
        self._marks = 0
        self.failing_answers = 0.0
        self.crashes = 0.0
        """Probability that a handler just ends at one of its steps, as after an unhandled exception."""
        self.instances: list[Instance | None] = [None] * self.INSTANCES
        for number in range(self.INSTANCES):
            self.bring_up(number)
        world.hook = self._hook

    def bring_up(self, number: int) -> None:
        if self.instances[number] is None:
            self.instances[number] = Instance(self._world.loop.process(f"agent-{number}"))

    def bring_down(self, number: int) -> None:
        instance = self.instances[number]
        if instance is not None:
            self._world.loop.kill(instance.process)
            self.instances[number] = None

    async def _hook(self, raw: bytes) -> WasDelivered | Undelivered:
        """What a webhook does, from the dispatcher's side."""
        network, rng = self._world.network, self._world.rng
        await network.pause(network.delay())
        answering = [each for each in self.instances if each is not None and each.process.state == "running"]
        if not answering:
            return UNREACHABLE
        instance = rng.choice(answering)
        body = msgspec.json.decode(raw)
        drawn = rng.random()
        execution_id, dispatch_id, attempt = body["execution_id"], body["dispatch_id"], body["dispatch_attempt"]
        self._world.history.append(
            Delivered(
                at=self._world.loop.time(),
                who=instance.process.name,
                execution_id=execution_id,
                dispatch_id=dispatch_id,
                attempt=attempt,
            )
        )
        if drawn < self.failing_answers / 2:
            return Undelivered(reason="http_500")
        self._begin(instance, execution_id, dispatch_id, attempt)
        await network.pause(network.delay())
        if drawn < self.failing_answers:
            await network.pause(SETTINGS.delivery_seconds)
            return TIMEOUT
        return WasDelivered()

    def _begin(self, instance: Instance, execution_id: str, dispatch_id: str, attempt: int) -> None:
        known = instance.handlers.get(execution_id)
        if known is not None:
            if known[0] >= attempt:
                return
            known[1].cancel()
        handler = Handler(self, self._world, execution_id, dispatch_id, attempt)
        instance.handlers[execution_id] = (attempt, self._world.loop.start(instance.process, handler.run()))

    def script(self, mark: str) -> Script:
        return self._scripts[mark]

    def mark(self) -> str:
        """Return a text that nobody else sends."""
        self._marks += 1
        return f"mark-{self._marks}."


class Handler:
    """One attempt at one execution."""

    def __init__(self, agent: Agent, world: World, execution_id: str, dispatch_id: str, attempt: int) -> None:
        self._agent = agent
        self._world = world
        self._execution_id = execution_id
        self._dispatch_id = dispatch_id
        self._attempt = attempt
        self._who = f"agent/{dispatch_id[-6:]}/{attempt}"
        self._path = f"/v0/executions/{execution_id}"
        self._to_settle: list[tuple[str, str, str]] = []

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                beats = group.create_task(self._beat())
                try:
                    await self._work()
                finally:
                    beats.cancel()
        except* Stopped:
            pass

    async def _beat(self) -> None:
        """Heartbeat without waiting for what became of the last one, through each door in turn."""
        number = 0
        async with asyncio.TaskGroup() as beats:
            while True:
                await self._world.network.pause(BEAT_SECONDS)
                number += 1
                beats.create_task(self._beat_once(number))

    async def _beat_once(self, number: int) -> None:
        answered = await self._ask("heartbeat", f"{self._path}/heartbeat", None, door=number)
        if answered.status == 409:
            # The end of the group ends the work too.
            raise Stopped

    async def _work(self) -> None:
        answered = await self._repeat(lambda: self._ask("get", self._path, None, method="GET"))
        assert isinstance(answered.body, dict)
        if answered.body["status"] in ("completed", "failed", "cancelled"):
            return
        script = self._agent.script(answered.body["input"]["mark"])
        for call in script.calls:
            if call.count == 1:
                await self._step(call)
                continue
            async with asyncio.TaskGroup() as group:
                for _ in range(call.count):
                    group.create_task(self._step(call))
        await self._end(script)

    async def _step(self, call: Call) -> None:
        self._may_crash()
        settled, self._to_settle = self._to_settle, []
        key = self._agent.mark()
        body: dict[str, Any] = {"kind": call.kind, "target": call.target, "args": msgspec.Raw(call.args.encode())}
        if call.is_at_most_once:
            body["idempotency"] = "at_most_once"
        if settled:
            body["settle"] = [_settle(*each) for each in settled]

        def submit() -> Coroutine[Any, Any, Answered]:
            return self._ask(
                "submit", f"{self._path}/steps", body, key=key, settled=settled, target=call.target, args=call.args
            )

        answered = await self._repeat(submit)
        decided = answered.body
        assert isinstance(decided, dict)
        if decided["decision"] == "execution_terminal":
            raise Stopped
        if decided["decision"] != "proceed":
            return
        self._may_crash()
        await self._world.network.pause(self._world.rng.choice((0.0, 0.0, 0.01, 1.0)) * self._world.rng.random())
        step_id: str = decided["step_id"]
        self._world.history.append(
            Effect(
                at=self._world.loop.time(),
                who=self._who,
                execution_id=self._execution_id,
                step_id=step_id,
                attempt=self._attempt,
                is_at_most_once=call.is_at_most_once,
            )
        )
        self._may_crash()
        mark = self._agent.mark()
        outcome = (step_id, "error" if call.fails else "result", mark)
        if call.settles:
            self._to_settle.append(outcome)
            return
        await self._report(outcome)
        if self._world.network.strikes(self._agent.crashes):
            # A repeat that was long under way must not send the work off again.
            await submit()

    async def _report(self, outcome: tuple[str, str, str]) -> None:
        step_id, kind, mark = outcome
        action: Action = "fail_step" if kind == "error" else "complete_step"
        path = f"{self._path}/steps/{step_id}/{'fail' if kind == 'error' else 'complete'}"
        key = self._agent.mark()
        answered = await self._repeat(
            lambda: self._ask(action, path, {kind: {"mark": mark}}, key=key, settled=[outcome], step_id=step_id)
        )
        assert isinstance(answered.body, dict)
        if answered.body["decision"] == "execution_terminal":
            raise Stopped

    async def _end(self, script: Script) -> None:
        self._may_crash()
        settled, self._to_settle = self._to_settle, []
        key, mark = self._agent.mark(), self._agent.mark()
        action: Action = "fail" if script.fails else "complete"
        body: dict[str, Any] = {"error": mark} if script.fails else {"output": {"mark": mark}}
        if settled:
            body["settle"] = [_settle(*each) for each in settled]
        await self._repeat(
            lambda: self._ask(action, f"{self._path}/{action}", body, key=key, settled=settled, mark=mark)
        )

    def _may_crash(self) -> None:
        if self._world.network.strikes(self._agent.crashes):
            raise Stopped

    async def _repeat(self, ask: Callable[[], Coroutine[Any, Any, Answered]]) -> Answered:
        """Ask until there is a decision, always with the same key and the same bytes."""
        gives_up_at = self._world.loop.time() + PATIENCE_SECONDS
        while self._world.loop.time() < gives_up_at:
            answered = await ask()
            if answered.status not in RETRIED:
                if self._world.network.strikes(self._agent.crashes):
                    # A repeat of what was answered is answered alike.
                    await ask()
                if answered.status >= 400:
                    raise Stopped
                return answered
            await self._world.network.pause(0.1 + 0.4 * self._world.rng.random())
        raise Stopped

    async def _ask(
        self,
        action: Action,
        path: str,
        body: dict[str, Any] | None,
        *,
        method: str = "POST",
        key: str = "",
        settled: list[tuple[str, str, str]] | None = None,
        step_id: str = "",
        target: str = "",
        args: str = "",
        mark: str = "",
        door: int | None = None,
    ) -> Answered:
        raw = b"" if body is None else msgspec.json.encode(body)
        outcomes = settled or []
        asked = Asked(
            number=self._world.next_number(),
            at=self._world.loop.time(),
            who=self._who,
            action=action,
            execution_id=self._execution_id,
            dispatch_id=self._dispatch_id,
            attempt=self._attempt,
            step_id=step_id,
            target=target,
            args=args,
            key=key,
            marks=tuple(each[2] for each in outcomes) + ((mark,) if mark else ()),
            settled=tuple(Settled(step_id=each[0], outcome=f'{{"mark":"{each[2]}"}}') for each in outcomes),
        )
        headers = self._signed(method, path, raw)
        if key:
            headers[b"idempotency-key"] = key.encode()
        return await self._world.call(asked, method=method, path=path, headers=headers, body=raw, door=door)

    def _signed(self, method: str, path: str, body: bytes) -> dict[bytes, bytes]:
        timestamp = str(int(self._world.clock.time()))
        attempt = str(self._attempt)
        signature = sign_request(
            SECRET,
            method=method,
            target=path,
            timestamp=timestamp,
            dispatch_id=self._dispatch_id,
            attempt=attempt,
            body=body,
        )
        return {
            b"rebuno-agent-id": AGENT_ID.encode(),
            b"rebuno-dispatch-id": self._dispatch_id.encode(),
            b"rebuno-dispatch-attempt": attempt.encode(),
            b"rebuno-timestamp": timestamp.encode(),
            b"rebuno-signature": signature.encode(),
        }


def _settle(step_id: str, kind: str, mark: str) -> dict[str, object]:
    return {"step_id": step_id, kind: {"mark": mark}}
