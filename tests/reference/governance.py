"""The scenario of the bundle: a payment that a person lets through while no agent runs, and every refusal."""

import msgspec

from tests.reference.client import Approval
from tests.reference.deployment import AgentProcess, Deployment
from tests.reference.runs import Record, recorded
from tests.reference.stage import Note

RATIONALE = "Not before the audit is over."
PROSE = "Nothing leaves the house."
BUNDLE = f"""
default_action: allow
rules:
  - id: payment
    priority: 1
    when: {{target: pay}}
    then: {{decision: require_approval, approval_config: {{message: "May it pay?"}}}}
  - id: asked
    priority: 2
    when: {{target: asked}}
    then: {{decision: require_approval}}
  - id: hurried
    priority: 3
    when: {{target: hurried}}
    then: {{decision: require_approval, approval_config: {{timeout: 1s}}}}
  - id: post
    priority: 4
    when: {{target: mail}}
    then: {{decision: allow, rate_limit: {{max_calls: 1, window: 1h}}}}
  - id: closed
    priority: 5
    when: {{target: export}}
    then: {{decision: deny}}
  - id: house
    priority: 6
    when: {{target: published}}
    then: {{decision: deny, reason: "{PROSE}"}}
"""
# Those that end by themselves.
UNDECIDED = ("hurried", "limited", "forbidden", "forbidden and uncaught", "limited and uncaught")


class Governed(msgspec.Struct, frozen=True):
    """A granted payment, whose agent was killed while it waited, and what every refusal came to."""

    while_it_waited: Record
    asked_for: Approval
    payment: Record
    granted: Approval
    denied: Approval
    refusals: dict[str, Record]
    effects: list[Note]

    def effects_of(self, record: Record) -> list[Note]:
        return [note for note in self.effects if note.execution == record.execution.id]


def run_governed(deployment: Deployment) -> Governed:
    stage = deployment.new_stage("governed")
    agent = deployment.agent("governed", stage)
    deployment.register(agent)
    deployment.load_policy(agent.agent_id, BUNDLE)
    agent.start()
    client = deployment.client
    refused = {name: client.create(agent.agent_id, {"scenario": name}).id for name in ("asked", *UNDECIDED)}
    question = _pending(deployment, refused["asked"])
    client.deny(question.id, decided_by="auditor", rationale=RATIONALE)
    for execution_id in refused.values():
        deployment.ended(execution_id)
    while_it_waited, asked_for = _granted_over_a_kill(deployment, agent)
    return Governed(
        while_it_waited=while_it_waited,
        asked_for=asked_for,
        payment=recorded(deployment, while_it_waited.execution.id),
        granted=client.approval(asked_for.id),
        denied=client.approval(question.id),
        refusals={name: recorded(deployment, execution_id) for name, execution_id in refused.items()},
        effects=stage.notes("effect"),
    )


def _granted_over_a_kill(deployment: Deployment, agent: AgentProcess) -> tuple[Record, Approval]:
    """The process that asked is gone before anybody answers; another one, started after the answer, goes on."""
    execution_id = deployment.client.create(agent.agent_id, {"scenario": "payment"}).id
    asked_for = _pending(deployment, execution_id)
    agent.kill()
    while_it_waited = recorded(deployment, execution_id)
    deployment.grant(asked_for.id)
    agent.start()
    deployment.ended(execution_id)
    return while_it_waited, asked_for


def _pending(deployment: Deployment, execution_id: str) -> Approval:
    """The approval that this execution waits for."""

    def found() -> list[Approval]:
        return [approval for approval in deployment.client.approvals() if approval.execution_id == execution_id]

    (approval,) = deployment.wait(found, f"the approval that execution {execution_id} waits for")
    return approval
