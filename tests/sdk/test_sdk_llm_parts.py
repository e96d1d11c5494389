"""The parts of recorded LLM calls: what makes a step of a request, records, ends of streams, refusals."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import Blocked, LeaseSuperseded, PolicyError, RateLimited, Terminated, raise_for_refusal
from stepwell.llm.calls import PARTS_MAX, call_of
from stepwell.llm.endings import Ending
from stepwell.llm.records import Answer, answer_of, record_of
from stepwell.llm.refusals import refusal, word_refusal

# ---------------------------------------------------------------- requests


def test_a_json_object_is_a_call_of_its_model() -> None:
    body = b'{"model":"gpt-x","stream":true,"messages":[{"content":"h\\u00e9"}]}'
    call = call_of("application/json", body)
    assert call is not None
    assert (call.target, call.is_streamed) == ("gpt-x", True)
    assert call.args == json.loads(body)
    unnamed = call_of("application/json", b'{"model":7}')
    assert unnamed is not None
    assert unnamed.target == ""


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"x", b'"s"', b"\xff", b"[" * 100_000, b"a=b"])
def test_any_other_body_is_no_call(body: bytes) -> None:
    assert call_of("application/json", body) is None
    assert call_of("application/x-www-form-urlencoded", body) is None


def multipart(boundary: str, *parts: tuple[str, bytes]) -> tuple[str, bytes]:
    pieces = [f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts]
    return f'multipart/form-data; boundary="{boundary}"', b"".join(pieces) + f"--{boundary}--\r\n".encode()


NAMED = 'Content-Disposition: form-data; name="model"'
FILE = 'Content-Disposition: form-data; name="file"; filename="é a.png"\r\nContent-Type: image/png'
BYTES = bytes(range(256)) + b"\r\n--not-the-boundary\r\n\r\n\r\n"


def test_a_multipart_body_is_its_parts_whatever_the_boundary() -> None:
    found = [call_of(*multipart(boundary, (NAMED, b"whisper"), (FILE, BYTES))) for boundary in ("abc", "x" * 60)]
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].target == "whisper"
    named, file = found[0].args
    assert named == {"name": "model", "filename": None, "content_type": None, "sha256": named["sha256"], "size": 7}
    assert (file["name"], file["filename"], file["content_type"]) == ("file", "é a.png", "image/png")
    assert file["size"] == len(BYTES)
    assert len(file["sha256"]) == 64


def test_another_file_name_content_or_order_is_another_call() -> None:
    parts = [(NAMED, b"whisper"), (FILE, BYTES)]
    same = call_of(*multipart("b", *parts))
    for other in (
        parts[::-1],
        [(NAMED, b"whisper"), (FILE.replace("a.png", "b.png"), BYTES)],
        [(NAMED, b"whisper"), (FILE, BYTES + b"x")],
        [*parts, (NAMED, b"")],
    ):
        assert call_of(*multipart("b", *other)) != same


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"--b\r\n\r\n\r\n--b--"),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"--b\r\nno head--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nA: b\r\n\r\n" * (PARTS_MAX + 1)),
    ],
)
def test_a_multipart_body_that_cannot_be_read_is_no_call(content_type: str, body: bytes) -> None:
    assert call_of(content_type, body) is None


@given(st.binary(max_size=200), st.sampled_from(["", "application/json", "multipart/form-data; boundary=x"]))
def test_no_body_makes_it_raise(body: bytes, content_type: str) -> None:
    call_of(content_type, body)
    call_of(content_type, b"--x\r\n" + body + b"\r\n--x--")


# ---------------------------------------------------------------- records


@given(
    st.binary(), st.integers(200, 599), st.sampled_from(["", "application/json", "text/event-stream; charset=utf-8"])
)
def test_a_record_makes_the_same_answer_again(body: bytes, status: int, content_type: str) -> None:
    answer = Answer(status, content_type, body)
    record = json.loads(json.dumps(record_of(answer)))
    assert answer_of(record) == answer
    assert {"status", "headers", "body"} <= set(record) <= {"status", "headers", "body", "body_encoding"}


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"status": "200", "body": ""},
        {"status": 200},
        {"status": 200, "body": "\ud800"},
        {"status": 200, "body": "!", "body_encoding": "base64"},
    ],
)
def test_what_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(ValueError, match="recorded"):
        answer_of(record)


# ---------------------------------------------------------------- ends of streams

CHAT = '{"choices":[{"delta":{"content":"é"}}]}'
CHAT_END = '{"choices":[{"delta":{},"finish_reason":"stop"}]}'
SHAPES = {
    "chat": [CHAT, CHAT_END, '{"choices":[],"usage":{"total_tokens":1}}', "[DONE]"],
    "responses": ['{"type":"response.created"}', '{"type":"response.output_text.delta"}'],
    "messages": ['{"type":"message_start"}', '{"type":"message_delta"}', '{"type":"message_stop"}'],
}


def trouble(stream: str | bytes, *, size: int = 0) -> str:
    raw = stream.encode() if isinstance(stream, str) else stream
    ending = Ending()
    text = "".join(ending.feed(raw[at : at + (size or len(raw))]) for at in range(0, len(raw), size or len(raw) or 1))
    assert "\ufffd" not in text
    return ending.trouble()


def written(*data: str, end: str = "\n") -> str:
    return "".join(f"data: {each}{end}{end}" for each in data)


@pytest.mark.parametrize("word", ["completed", "incomplete", "failed"])
def test_a_response_ends_in_one_of_three_ways(word: str) -> None:
    begun = SHAPES["responses"]
    assert trouble(written(*begun)) == "the stream ended before its end"
    assert trouble(written(*begun, f'{{"type":"response.{word}"}}')) == ""


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("shape", ["chat", "messages"])
def test_a_stream_is_whole_with_its_marker_however_it_is_cut(shape: str, end: str, size: int) -> None:
    whole = SHAPES[shape]
    assert trouble(written(*whole, end=end), size=size) == ""
    assert trouble(written(*whole[:1], end=end), size=size) == "the stream ended before its end"


def test_a_chat_needs_no_done_and_done_alone_ends_nothing() -> None:
    assert trouble(written(CHAT, CHAT_END)) == ""
    assert trouble(written(CHAT, "[DONE]")) == "the stream ended before its end"
    # The last event may lack its blank line.
    assert trouble(written(CHAT) + f"data:{CHAT_END}") == ""


def test_other_streams_end_where_they_end() -> None:
    assert trouble(written('{"x":1}', "words")) == ""
    assert trouble("") == ""


def test_an_error_within_a_stream_is_its_trouble() -> None:
    anthropic = '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    assert "overloaded_error" in trouble(written(*SHAPES["messages"], anthropic))
    assert "quota" in trouble(written(CHAT, '{"error":{"message":"quota"}}'))
    assert trouble(written('{"type":"response.completed","response":{"error":null}}')) == ""


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (PolicyError("too dear"), 403, "rebuno_refusal: denied reason=too dear"),
        (RateLimited(), 429, "rebuno_refusal: rate_limited reason=rate_limit_exceeded"),
        (Blocked("x"), 403, "rebuno_refusal: blocked"),
        (Terminated("x"), 403, "rebuno_refusal: execution_terminal"),
        (LeaseSuperseded("x"), 409, "rebuno_refusal: lease_superseded"),
    ],
)
def test_a_refusal_is_an_answer_and_comes_back_as_what_it_is(error: BaseException, status: int, message: str) -> None:
    answer = refusal(error)
    assert answer is not None
    assert answer.status == status
    assert json.loads(answer.body) == {"error": {"type": "rebuno_refusal", "message": message}}
    assert answer.headers["x-should-retry"] == "false"
    wrapped = ValueError(f"Error code: {status} - {json.loads(answer.body)}")
    for _ in range(9):
        outer = RuntimeError("wrapped")
        outer.__cause__ = wrapped
        wrapped = outer
    with pytest.raises(type(error)) as caught:
        raise_for_refusal(wrapped)
    if isinstance(error, PolicyError | RateLimited):
        assert str(caught.value) == str(error)


def test_words_of_the_kernel_are_refusals_with_their_own_marker() -> None:
    answer = word_refusal("execution_blocked", "")
    assert json.loads(answer.body)["error"]["message"] == "rebuno_refusal: execution_blocked"
    with pytest.raises(Blocked):
        raise_for_refusal(ValueError(answer.body.decode()))
    assert word_refusal("rate_limited", "").status == 429
    assert word_refusal("what is this", "").status == 502


def test_an_error_that_carries_no_refusal_is_let_pass() -> None:
    raise_for_refusal(ValueError("rebuno"))
    raise_for_refusal(ValueError("rebuno_refusal: something_new"))
    circle = ValueError("x")
    circle.__cause__ = circle
    raise_for_refusal(circle)
    assert refusal(ValueError("x")) is None
