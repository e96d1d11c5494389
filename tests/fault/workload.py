"""Many executions with every kind of call, made by agents that die, come late, repeat themselves and are cancelled."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.calls import KEY
from tests.conformance.harness.endpoint import Answer, Delivery
from tests.conformance.harness.kernel import Kernel
from tests.fault.caller import Caller, Impatient, Record, blank, text_of
from tests.fault.history import Settled
from tests.fault.plan import Plan
from tests.support.scripted_agent import pass_time
from tests.support.wait import NotInTime, wait_until_async

TWINS = 3
CONVERSATION = [f"line {number} of what is said again with every call" for number in range(400)]
PADDING = "p" * 500_000
END_SECONDS_MAX = 180.0
BEAT_SECONDS = 2.0
BEAT_PATIENCE_SECONDS = 4.0


class Unexpected(AssertionError):
    """An answer that no good agent may get."""


class Died(Exception):
    """The agent died between an effect and its outcome, and nobody heard of either."""


class Ended(Exception):
    """The attempt may do nothing more: superseded, or the execution has ended."""


async def _knows(door: Kernel, agent_id: str) -> bool:
    return (await door.get(f"/v0/agents/{agent_id}")).status_code == 200


class Workload:
    """Lanes of clients that create one execution after another, and the agent that works on all of them."""

    def __init__(self, doors: Sequence[Kernel], seed: int) -> None:
        self.record = Record()
        self.seed = seed
        self.is_over = False
        self.executions: dict[str, str] = {}
        """How each execution that was created ended, by what its agent or its client was told; empty until then."""
        self.sleepers: list[str] = []
        """Executions whose agent did nothing but heartbeat, for as long as the run took."""
        self.findings: list[str] = []
        """What went wrong on the way: requests never answered for good, executions that never ended."""
        self._doors = doors
        self._choose = random.Random(seed)
        self._caller = Caller(doors, self.record, self._choose)
        self._plans: dict[str, Plan] = {}
        self._group: asyncio.TaskGroup | None = None

    async def start(self, group: asyncio.TaskGroup, *, lanes: int, sleepers: int) -> list["asyncio.Task[None]"]:
        """Start all lanes; they end by themselves once `is_over` is set."""
        self._group = group
        agent = await self._doors[0].agent(self._script, scheme="sha256")
        self._agent = agent
        for door in self._doors:
            # Another door may learn of it up to a second later, and knows no such agent until then.
            await wait_until_async(partial(_knows, door, agent.id), "every door to know the agent")
        work = [group.create_task(self._lane(number)) for number in range(lanes)]
        return work + [group.create_task(self._sleeper(number)) for number in range(sleepers)]

    @property
    def agent_ids(self) -> list[str]:
        return [self._agent.id]

    def attempts(self, execution_id: str) -> set[int]:
        """The attempts that were delivered for an execution."""
        return {delivery.attempt for delivery in self._agent.endpoint.of(execution_id)}

    # ------------------------------------------------------------ clients

    async def _lane(self, lane: int) -> None:
        choose = random.Random(f"{self.seed}/{lane}")
        number = 0
        while not self.is_over:
            number += 1
            plan = Plan(choose)
            try:
                execution_id = await self._create(f"lane-{lane}-{number}", plan)
                if plan.cancel_after is not None:
                    await pass_time(plan.cancel_after)
                    await self._cancel(execution_id)
            except Impatient as error:
                self.findings.append(str(error))
            else:
                await self._wait_for_end(execution_id)

    async def _create(self, name: str, plan: Plan | None) -> str:
        # A key is the tenant's: another run on the same stack must not meet it.
        name = f"{self._agent.id}-{name}"
        body = {"agent_id": self._agent.id, "input": name}
        call = self._doors[0].call("POST", "/v0/executions", body, headers={KEY: name})
        response = await self._caller.until_settled(
            blank(who="client", action="create", key=name, marks=(text_of(name),)), None, call
        )
        assert response.status_code == 201, response.text
        execution_id = response.json()["id"]
        self.executions.setdefault(execution_id, "")
        if plan is None:
            self.sleepers.append(execution_id)
        else:
            self._plans[execution_id] = plan
        return execution_id

    async def _cancel(self, execution_id: str) -> None:
        # Cancel takes no key: a repeat is told how it ended, by whomever.
        call = self._doors[0].call("POST", f"/v0/executions/{execution_id}/cancel")
        asked = blank(who="client", action="cancel", execution_id=execution_id)
        response = await self._caller.until_settled(asked, None, call)
        if response.status_code == 204:
            self.executions[execution_id] = "cancelled"
        else:
            self.executions[execution_id] = self.executions[execution_id] or response.json()["details"]["status"]

    async def _wait_for_end(self, execution_id: str) -> None:
        try:
            await wait_until_async(
                lambda: self.executions[execution_id],
                f"the end of execution {execution_id}",
                deadline_seconds=END_SECONDS_MAX,
            )
        except NotInTime:
            self.findings.append(
                f"execution {execution_id} did not end in {END_SECONDS_MAX:g} s: attempts "
                f"{sorted(self.attempts(execution_id))}, moves {self._plans[execution_id].moves}"
            )

    # ------------------------------------------------------------ agents

    def _script(self, delivery: Delivery) -> Answer:
        assert self._group is not None
        lease = self._agent.lease_of(delivery)
        self.record.delivered("agent", lease)
        self._group.create_task(self._attempt(lease), name=f"attempt of {lease.execution_id}")
        return Answer()

    async def _attempt(self, lease: Lease) -> None:
        execution_id = lease.execution_id
        try:
            # The webhook may be faster than the answer to the create.
            await wait_until_async(
                lambda: execution_id in self.executions,
                f"the client to be told of {execution_id}, which was delivered",
                deadline_seconds=END_SECONDS_MAX,
            )
            if execution_id not in self.sleepers:
                await self._work(Run(self, self._caller, self._agent, lease), self._plans[execution_id], lease)
        except Ended:
            return
        except (Impatient, NotInTime, Unexpected) as error:
            self.findings.append(str(error))

    async def _work(self, run: "Run", plan: Plan, lease: Lease) -> None:
        for number, move in enumerate(plan.moves):
            run.is_dying = plan.dies_at == number and lease.attempt == 1
            with contextlib.suppress(Died):
                await run.make(move, number)
            if run.is_dying:
                # Dead, as far as the kernel can tell; it comes back late, when another attempt works.
                await run.come_late()
                return
        if plan.is_raced:
            await asyncio.gather(run.end(), self._cancel(lease.execution_id))
        else:
            await run.end()

    async def _sleeper(self, number: int) -> None:
        """An execution whose agent only heartbeats. What it holds must never be taken from it."""
        execution_id = await self._create(f"sleeper-{number}", None)
        lease = await self._agent.lease(execution_id, deadline_seconds=END_SECONDS_MAX)
        run = Run(self, self._caller, self._agent, lease)
        while not self.is_over:
            await run.beat()
            await pass_time(BEAT_SECONDS)
        await run.end()


class Run:
    """One attempt at work. Every request is written down before it is sent."""

    def __init__(self, workload: Workload, caller: Caller, agent: Agent, lease: Lease) -> None:
        self.is_dying = False
        """Whether its next effect is the last thing that it does in time."""
        self._workload = workload
        self._caller = caller
        self._agent = agent
        self._lease = lease
        self._who = f"attempt {lease.attempt} of {lease.execution_id[-6:]}"
        self._about = {
            "who": self._who,
            "execution_id": lease.execution_id,
            "dispatch_id": str(lease.dispatch_id),
            "attempt": int(lease.attempt or 0),
        }

    async def make(self, move: str, number: int) -> None:
        args = {"n": number}
        match move:
            case "step" | "once":
                await self._run_step(move, args, is_at_most_once=move == "once")
            case "twins":
                await self._run_twins(args)
            case "settled":
                await self._run_settled(args)
            case "failing":
                await self._run_step("failing", args, is_failing=True)
            case "doubled":
                await self._run_doubled(args)
            case "chat":
                await self._run_step("chat", {"messages": CONVERSATION, "n": number}, kind="llm_call")
            case "bulky":
                await self._run_step("bulky", args, padding=PADDING)
            case "probe":
                await self._probe(number)
            case _:
                await self.beat()

    async def end(self) -> None:
        output = f"output of {self._who}"
        asked = blank(
            action="complete",
            key=f"end-{self._lease.attempt}",
            marks=(text_of(output),),
            **self._about,
        )
        response = await self._caller.until_settled(
            asked, self._agent, self._lease.call("/complete", {"output": output}, key=asked.key)
        )
        if response.status_code == 204:
            self._ended("completed")
        elif response.status_code == 409 and response.json()["code"] == "execution_terminal":
            self._ended(response.json()["details"]["status"])

    def _ended(self, status: str) -> None:
        executions = self._workload.executions
        executions[self._lease.execution_id] = executions[self._lease.execution_id] or status

    async def beat(self) -> None:
        """One heartbeat, given up after a while as the next one is due."""
        asked = blank(action="heartbeat", **self._about)
        try:
            async with asyncio.timeout(BEAT_PATIENCE_SECONDS):
                await self._caller.once(asked, self._lease.call("/heartbeat"))
        except TimeoutError:
            return

    async def come_late(self) -> None:
        """Wait until another attempt was delivered or the end was told, then go on as if nothing had happened."""
        endpoint, execution_id = self._agent.endpoint, self._lease.execution_id
        await wait_until_async(
            lambda: len(endpoint.of(execution_id)) > 1 or self._workload.executions[execution_id],
            f"another attempt of {execution_id} after the first one died",
            deadline_seconds=END_SECONDS_MAX,
        )
        await self.beat()
        mark = f"late call of {self._who}"
        await self._submit("late", {"mark": mark}, key="late", marks=(mark,))

    # ------------------------------------------------------------ steps

    async def _run_step(
        self,
        target: str,
        args: Any,
        *,
        name: str = "",
        kind: str = "tool_call",
        is_at_most_once: bool = False,
        is_failing: bool = False,
        padding: str = "",
    ) -> None:
        key = f"{target}-{args['n']}-{name}-{self._lease.attempt}"
        decision = await self._submit(target, args, key=f"s-{key}", kind=kind, is_at_most_once=is_at_most_once)
        if decision["decision"] == "proceed":
            self._effect(decision["step_id"], is_at_most_once=is_at_most_once)
            await self._finish(decision["step_id"], f"c-{key}", is_failing=is_failing, padding=padding)

    async def _run_twins(self, args: Any) -> None:
        """Identical calls at once: steps of their own, which a later attempt may trade."""
        runs = (self._run_step("twins", args, name=f"{twin}") for twin in range(TWINS))
        for ended in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    async def _run_settled(self, args: Any) -> None:
        """Two steps back to back: the outcome of the first travels with the second."""
        key = f"settled-{args['n']}-{self._lease.attempt}"
        first = await self._submit("settled", args, key=f"s-{key}")
        settle = []
        if first["decision"] == "proceed":
            self._effect(first["step_id"])
            settle = [{"step_id": first["step_id"], "result": f"{key} by {self._who}"}]
        second = await self._submit("settling", args, key=f"t-{key}", settle=settle)
        if second["decision"] == "proceed":
            self._effect(second["step_id"])
            await self._finish(second["step_id"], f"c-{key}")

    async def _run_doubled(self, args: Any) -> None:
        """The same request twice at the same moment: one step, one effect."""
        key = f"doubled-{args['n']}-{self._lease.attempt}"
        call, asked = self._submission("doubled", args, key=f"s-{key}")
        one, other = [self._decided(each) for each in await self._caller.at_once(asked, self._agent, call, 2)]
        if one["decision"] == other["decision"] == "proceed":
            self._effect(one["step_id"])
            await self._finish(one["step_id"], f"c-{key}")

    async def _probe(self, number: int) -> None:
        """A step that is asked for once and never again, with or without an answer."""
        mark = f"probe {number} of {self._who}"
        call, asked = self._submission("probe", {"mark": mark}, key="", marks=(mark,))
        response = await self._caller.once(asked, call)
        if response is not None and response.status_code == httpx.codes.OK:
            decision = self._decided(response)
            if decision["decision"] == "proceed":
                self._effect(decision["step_id"])
                await self._finish(decision["step_id"], f"p-{number}-{self._lease.attempt}")

    def _submission(
        self,
        target: str,
        args: Any,
        *,
        key: str,
        kind: str = "tool_call",
        is_at_most_once: bool = False,
        settle: list[dict[str, str]] | None = None,
        marks: tuple[str, ...] = (),
    ) -> tuple[Any, Any]:
        body: dict[str, Any] = {"kind": kind, "target": target, "args": args}
        if is_at_most_once:
            body["idempotency"] = "at_most_once"
        if settle:
            body["settle"] = settle
        settled = tuple(Settled(item["step_id"], text_of(item["result"])) for item in settle or [])
        asked = blank(
            action="submit", target=target, args=text_of(args), key=key, settled=settled, marks=marks, **self._about
        )
        return self._lease.call("/steps", body, key=key or None), asked

    async def _submit(self, target: str, args: Any, *, key: str, **more: Any) -> dict[str, Any]:
        call, asked = self._submission(target, args, key=key, **more)
        return self._decided(await self._caller.until_settled(asked, self._agent, call))

    def _decided(self, response: httpx.Response) -> dict[str, Any]:
        if response.status_code == httpx.codes.OK:
            decision = response.json()
            if decision["decision"] == "execution_terminal":
                raise Ended
            return decision
        self._stop_at_a_refusal(response)
        raise Ended

    def _effect(self, step_id: str, *, is_at_most_once: bool = False) -> None:
        self._workload.record.ran(self._who, self._lease, step_id, is_at_most_once=is_at_most_once)
        if self.is_dying:
            raise Died

    async def _finish(self, step_id: str, key: str, *, is_failing: bool = False, padding: str = "") -> None:
        outcome = f"outcome {key} by {self._who}"
        value = {"message": outcome} if is_failing else outcome + padding
        route, member = ("fail", "error") if is_failing else ("complete", "result")
        asked = blank(
            action="fail_step" if is_failing else "complete_step",
            step_id=step_id,
            key=key,
            marks=(outcome,),
            settled=(Settled(step_id, text_of(value)),),
            **self._about,
        )
        call = self._lease.call(f"/steps/{step_id}/{route}", {member: value}, key=key)
        response = await self._caller.until_settled(asked, self._agent, call)
        if response.status_code != httpx.codes.OK:
            self._stop_at_a_refusal(response)
            raise Ended
        if response.json()["decision"] == "execution_terminal":
            raise Ended

    def _stop_at_a_refusal(self, response: httpx.Response) -> None:
        """The one refusal that a good agent meets: another attempt works, or the execution has ended."""
        is_conflict = response.status_code == httpx.codes.CONFLICT
        if not is_conflict or response.json()["code"] not in {"lease_superseded", "execution_terminal"}:
            raise Unexpected(f"{self._who} was refused: {response.text}")
