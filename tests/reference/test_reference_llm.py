"""K112, its LLM calls: two releases of the reference client with their own `http_client`, recorded, shown, replayed."""

import pytest

from tests.reference.deployment import RELEASES
from tests.reference.llm import Asked
from tests.reference.model import COMPLETION, MISSING, STREAM

RECORDING = tuple(release for release in RELEASES if release.version in {"0.16.0", "0.29.2"})

pytestmark = [
    # With the other reference tests: the kernel, the deployments and the runs in the background are the same.
    pytest.mark.xdist_group("reference"),
    pytest.mark.parametrize("release", RECORDING, ids=lambda release: release.version),
]


def test_the_provider_is_asked_once_for_each_call_over_a_kill(asked: Asked) -> None:
    assert (asked.record.execution.status, asked.record.execution.failure_reason) == ("completed", "")
    assert asked.asked == ["m-whole", "m-streamed", "m-missing"]
    assert {effect.attempt for effect in asked.effects} == {1, 2}


def test_live_and_replayed_answers_are_equal(asked: Asked) -> None:
    live, replayed = asked.found

    assert live == replayed == asked.record.execution.output
    assert live["whole"] == COMPLETION
    assert live["streamed"] == ["text/event-stream", STREAM]
    assert live["missing"] == [404, MISSING]


def test_every_call_is_a_step_with_its_record_and_usage(asked: Asked) -> None:
    steps = [(step.kind, step.target, step.status) for step in asked.record.steps]

    assert steps == [("llm_call", f"m-{each}", "succeeded") for each in ("whole", "streamed", "missing")]
    assert asked.record.step("m-streamed").result["body"] == STREAM
    assert asked.record.step("m-missing").result["status"] == 404


def test_observers_see_the_stream_once_and_in_order(asked: Asked) -> None:
    streamed = asked.record.step("m-streamed")

    assert {delta["step_id"] for delta in asked.shown} == {streamed.step_id}
    numbers = [delta["seq"] for delta in asked.shown]
    assert numbers == sorted(set(numbers))
    assert "".join(delta["data"] for delta in asked.shown) == STREAM
