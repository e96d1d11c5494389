"""The scenario of LLM calls: an agent that asks a model is killed, and asks again in its next attempt."""

from typing import Any

import msgspec

from tests.reference.deployment import Deployment
from tests.reference.model import Model
from tests.reference.runs import Record, recorded
from tests.reference.stage import Note


class Asked(msgspec.Struct, frozen=True):
    """What the agent got in both attempts, what observers saw, and what the provider was asked."""

    record: Record
    found: list[Any]
    asked: list[str]
    shown: list[dict[str, Any]]
    effects: list[Note]


def run_llm(deployment: Deployment) -> Asked:
    stage = deployment.new_stage("llm", "watched", "never")
    agent = deployment.agent("llm", stage)
    deployment.register(agent)
    agent.start()
    with Model() as model:
        execution_id = deployment.client.create(agent.agent_id, {"provider": model.url}).id
        deployment.wait(lambda: stage.notes("effect", "answered"), "the first answer")
        with deployment.watched(execution_id) as watched:
            stage.open("watched")
            deployment.wait(lambda: stage.notes("effect", "all"), "all answers")
            agent.kill()
            agent.start()
            deployment.ended(execution_id)
            deployment.wait(lambda: watched.has_ended, "the end of the stream of deltas")
    effects = stage.notes("effect", execution=execution_id)
    return Asked(
        record=recorded(deployment, execution_id),
        found=[note.facts["found"] for note in effects if note.name == "all"],
        asked=model.asked,
        shown=watched.deltas,
        effects=effects,
    )
