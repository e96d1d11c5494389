"""Small agents, what each is given, and how each of them must end, wherever and however it runs.

What a run must come to is told from its recorded steps, so chance, fresh words and repeated bodies are allowed for.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from stepwell import Step
from stepwell.agent import Handler
from tests.sdk import scenario_agents as agents
from tests.sdk.effects import Sink
from tests.sdk.scenario_agents import Ending


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """An agent, what it is given, and the end that its recorded steps foretell."""

    name: str
    handler: Callable[[Sink], Handler]
    ending: Callable[[list[Step]], Ending]
    given: Any = None
    policy: str = ""
    verdict: Literal["", "grant", "deny"] = ""
    """What a person says when asked."""


def _policy(target: str, then: str) -> str:
    return f"rules: [{{id: one, when: {{target: {target}}}, then: {{{then}}}}}]\ndefault_action: allow"


def _always(**known: Any) -> Callable[[list[Step]], Ending]:
    ending = Ending(**known)
    return lambda _: ending


_WRITTEN = ["draft is written", "note is written"]

SCENARIOS = (
    Scenario(name="sequential", handler=agents.sequential, ending=agents.sequential_ending, given={"first": "first"}),
    Scenario(
        name="many-steps",
        handler=agents.many_steps,
        ending=_always(output=sum(range(agents.MANY)), effects=tuple(f"add {number}" for number in range(agents.MANY))),
    ),
    Scenario(name="large-result", handler=agents.large_result, ending=agents.large_ending),
    Scenario(
        name="identical-calls",
        handler=agents.identical_calls,
        ending=lambda steps: Ending(
            output=sorted(step.result for step in steps), effects=("draw from urn",) * 5, args=[{"urn": "urn"}] * 5
        ),
    ),
    Scenario(
        name="nested",
        handler=agents.nested,
        ending=_always(
            output=agents.NESTED,
            effects=("chapter one", "chapter two", "one 0", "one 1", "two 0", "two 1"),
        ),
    ),
    Scenario(
        name="plain-handler",
        handler=agents.plain_handler,
        ending=_always(output=["first is written", "second is written", "3"], effects=("first", "second", "third")),
    ),
    Scenario(
        name="threads",
        handler=agents.threads,
        ending=_always(
            output=["loop is written", "thread is written", "other thread is written"],
            effects=("loop", "thread", "other thread"),
        ),
    ),
    Scenario(name="chance-and-time", handler=agents.chance_and_time, ending=agents.chance_ending),
    Scenario(
        name="caught-failure",
        handler=agents.caught_failure,
        ending=_always(output=["too warm", "after is written"], effects=("explode", "after")),
    ),
    Scenario(
        name="failing-handler",
        handler=agents.failing_handler,
        ending=_always(
            status="failed", failure_reason="agent_error: LookupError: nothing is there", effects=("before",)
        ),
    ),
    Scenario(name="at-most-once", handler=agents.at_most_once, ending=agents.at_most_once_ending),
    Scenario(
        name="approval-granted",
        handler=agents.three_writes,
        ending=_always(output=[_WRITTEN[0], "book is out", _WRITTEN[1]], effects=("draft", "publish book", "note")),
        policy=_policy("publish", "decision: require_approval"),
        verdict="grant",
    ),
    Scenario(
        name="approval-denied",
        handler=agents.three_writes,
        ending=_always(
            output=[_WRITTEN[0], "publish not allowed. reason: not yet", _WRITTEN[1]], effects=("draft", "note")
        ),
        policy=_policy("publish", "decision: require_approval"),
        verdict="deny",
    ),
    Scenario(
        name="denied-tool",
        handler=agents.three_writes,
        ending=_always(
            output=[_WRITTEN[0], "publish not allowed. reason: never", _WRITTEN[1]], effects=("draft", "note")
        ),
        policy=_policy("publish", "decision: deny, reason: never"),
    ),
    Scenario(
        name="denied-step",
        handler=agents.a_denied_step,
        ending=_always(status="failed", failure_reason="no_clocks", effects=("before",)),
        policy=_policy("clock", "decision: deny, reason: no_clocks"),
    ),
    Scenario(
        name="result-with-state",
        handler=agents.result_with_state,
        ending=_always(output="page is written", effects=("page",)),
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
REASON = "not yet"
"""Of the person who denies."""
