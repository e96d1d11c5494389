"""A23: an agent that was written for the published client does the same once its import is changed."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reference.deployment import RELEASES, SCRIPTS, SECRET, AgentProcess, Deployment
from tests.reference.runs import recorded

SCENARIOS = {
    "everything": "",
    "exception": "agent_error: LookupError: nothing: nowhere",
    "tool error": "tool_error: explode: too cold",
    "denied tool": "",
    "denied step": "no_secrets",
    "denied step in words": "policy_denied: Not on Sundays.",
    "rate limited": "rate_limit_exceeded",
    "rate limited and caught": "",
}
"""With the failure reason of each."""
BUNDLE = """
default_action: allow
rules:
  - {id: secrets, priority: 1, when: {target: secret}, then: {decision: deny, reason: no_secrets}}
  - {id: sundays, priority: 2, when: {target: sunday}, then: {decision: deny, reason: "Not on Sundays."}}
  - {id: closed, priority: 3, when: {target: publish}, then: {decision: deny, reason: "Nothing leaves the house."}}
  - id: post
    priority: 4
    when: {target: mail}
    then: {decision: allow, rate_limit: {max_calls: 1, window: 1h, per_what: execution}}
"""


@pytest.fixture
def moved(deployment: Deployment, tmp_path: Path) -> Iterator[AgentProcess]:
    """The same agent with the import changed, in the environment of the library."""
    text = (SCRIPTS / "ported.py").read_text("utf-8")
    assert text.count("\nfrom rebuno import ") == 1
    script = tmp_path / "ported.py"
    script.write_text(text.replace("\nfrom rebuno import ", "\nfrom stepwell import "), "utf-8")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONUNBUFFERED": "1",
        "REBUNO_URL": deployment.kernel.url,
        "REBUNO_AGENT_SECRET": SECRET,
    }
    process = AgentProcess("ported-stepwell", [sys.executable, str(script)], environment, tmp_path / "ported.txt")
    yield process
    process.close()


@pytest.mark.parametrize("release", [RELEASES[-1]], ids=lambda release: release.version)
def test_a23_an_agent_whose_import_is_changed_makes_the_same_steps_and_ends_in_the_same_way(
    deployment: Deployment, moved: AgentProcess
) -> None:
    published = deployment.agent("ported", deployment.new_stage("ported"))
    agents = (published, moved)
    for agent in agents:
        deployment.register(agent)
        deployment.load_policy(agent.agent_id, BUNDLE)
        agent.start()
    created = {
        (agent.agent_id, name): deployment.client.create(agent.agent_id, {"scenario": name}).id
        for agent in agents
        for name in SCENARIOS
    }

    before, after = [{name: _seen(deployment, created[agent.agent_id, name]) for name in SCENARIOS} for agent in agents]

    for name in SCENARIOS:
        assert after[name] == before[name], name
    assert {name: seen["failure_reason"] for name, seen in after.items()} == SCENARIOS
    assert [step[0] for step in after["everything"]["steps"]] == [
        *["coin", "explode", "pages.read", "publish"],
        *["search", "search", "search", "secret", "web.fetch"],
    ]


def _seen(deployment: Deployment, execution_id: str) -> dict[str, Any]:
    """Return what of an execution depends neither on its id nor on what came first of calls made at once."""
    deployment.ended(execution_id)
    record = recorded(deployment, execution_id)
    return {
        "status": record.execution.status,
        "output": record.execution.output,
        "failure_reason": record.execution.failure_reason,
        "steps": sorted(
            (step.target, step.kind, step.args_hash, step.occurrence, step.idempotency, step.status, repr(step.error))
            for step in record.steps
        ),
        "events": sorted(event.type for event in record.events),
    }
