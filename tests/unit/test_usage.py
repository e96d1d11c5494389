"""Token counts out of the records of LLM calls, in the shapes of the providers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.usage import EVENTS_MAX, TOKENS_MAX, recorded_usage
from schemas.bodies import Usage

CHAT = {
    "prompt_tokens": 19,
    "completion_tokens": 10,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 7, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 4},
}
RESPONSES = {
    "input_tokens": 36,
    "input_tokens_details": {"cached_tokens": 5},
    "output_tokens": 87,
    "output_tokens_details": {"reasoning_tokens": 60},
    "total_tokens": 123,
}
MESSAGES = {"input_tokens": 20, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": 9}
EMBEDDINGS = {"prompt_tokens": 8, "total_tokens": 8}


def record(body: str, content_type: str = "application/json") -> Any:
    return {"status": 200, "headers": {"content-type": content_type}, "body": body}


def stream(*events: Any, end: str = "\n") -> Any:
    texts = [each if isinstance(each, str) else f"data: {json.dumps(each)}{end}{end}" for each in events]
    return record("".join(texts), "text/event-stream; charset=utf-8")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (CHAT, Usage(19, 10, 29, 7, 4)),
        (RESPONSES, Usage(36, 87, 123, 5, 60)),
        (MESSAGES, Usage(123, 9, 132, 100, 0)),
        (EMBEDDINGS, Usage(8, 0, 8, 0, 0)),
        ({"total_tokens": 5}, Usage(0, 0, 5, 0, 0)),
        ({"input_tokens": 4, "output_tokens": None, "input_tokens_details": None}, Usage(4, 0, 4, 0, 0)),
    ],
)
def test_a_whole_answer_says_what_it_took(usage: Any, expected: Usage) -> None:
    assert recorded_usage(record(json.dumps({"id": "x", "usage": usage}))) == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_streamed_chat_says_it_in_its_last_chunk(end: str) -> None:
    chunk = {"choices": [{"delta": {"content": 'the "usage" of words'}}], "usage": None}
    found = stream(chunk, chunk, {"choices": [], "usage": CHAT}, f"data: [DONE]{end}{end}", end=end)
    assert recorded_usage(found) == Usage(19, 10, 29, 7, 4)


def test_counts_that_come_again_are_totals_and_counted_once() -> None:
    chunks = [{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": count}} for count in (1, 2, 3)]
    assert recorded_usage(stream(*chunks)) == Usage(9, 3, 12, 0, 0)


def test_a_streamed_response_says_it_with_its_completion() -> None:
    found = stream(
        "event: response.created\n",
        {"type": "response.created", "response": {"id": "r", "usage": None}},
        "event: response.completed\n",
        {"type": "response.completed", "response": {"id": "r", "usage": RESPONSES}},
    )
    assert recorded_usage(found) == Usage(36, 87, 123, 5, 60)


def test_a_streamed_message_says_its_input_first_and_its_output_last() -> None:
    found = stream(
        'event: message_start\ndata: {"type":"message_start","message":\n'
        'data: {"usage":{"input_tokens":25,"cache_read_input_tokens":4,"output_tokens":1}}}\n\n',
        {"type": "content_block_delta", "delta": {"text": "hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
        {"type": "message_stop"},
    )
    assert recorded_usage(found) == Usage(29, 15, 44, 4, 0)


def test_a_stream_that_is_parsed_by_the_letter() -> None:
    """No space after the colon, comments, other fields, and no blank line at the end."""
    text = ': keep-alive\n\ndata:{"usage":{"prompt_tokens":1}}\nid: 7\n\nretry: 5\ndata:\ndata:{"usage":\n'
    text += 'data: {"completion_tokens":2}}'
    assert recorded_usage(stream(text)) == Usage(1, 2, 3, 0, 0)


@pytest.mark.parametrize(
    "result",
    [
        None,
        1,
        [],
        {},
        {"body": '{"usage":{"total_tokens":1}}'},
        {"body": 1, "headers": {}},
        {"headers": {"content-type": 1}, "body": "no usage"},
        record('{"usage":'),
        record('{"usage":5}'),
        record('"usage"'),
        record("[" * 100_000 + '"usage"'),
        record('{"usage":"\ud800"}'),
        record('{"choices":[{"usage":{"total_tokens":1}}]}'),
        stream('data: {"usage":\n\n'),
        stream("x\n" * (EVENTS_MAX * 4 + 1), {"usage": CHAT}),
    ],
)
def test_what_names_no_counts_says_nothing(result: Any) -> None:
    assert recorded_usage(result) is None


def test_a_count_that_is_none_is_zero() -> None:
    for wrong in (-1, 1.5, "7", True, None, [], TOKENS_MAX + 1, 10**30):
        found = recorded_usage(record(json.dumps({"usage": {"input_tokens": wrong, "output_tokens": 2}})))
        assert found == Usage(0, 2, 2, 0, 0)
    odd: Any = {"content-type": 7}
    assert recorded_usage({"headers": odd, "body": '{"usage":{"total_tokens":1}}'}) == Usage(total_tokens=1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.sampled_from(["usage", "response", "message", "x"]), part),
    max_leaves=8,
)


@given(JSON, st.booleans())
def test_no_answer_makes_it_raise(value: Any, is_stream: bool) -> None:
    text = json.dumps({"usage": value, "response": value})
    result = stream(f"data: {text}\n\n") if is_stream else record(text)
    found = recorded_usage(result)
    assert found is None or min(found.input_tokens, found.output_tokens, found.total_tokens) >= 0
