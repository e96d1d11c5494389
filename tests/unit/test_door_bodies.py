"""Typed reading of requests. Whatever is wrong is refused with its path, and nothing else ever happens."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.errors import Invalid
from kernel.domain.json_values import read_object
from kernel.door import bodies
from kernel.door.exchange import Nobody, Request
from kernel.door.routes import ROUTES
from schemas.bodies import Usage
from schemas.entries import Lease
from schemas.ids import STEP_ID

EXECUTION_ID = "0199aaaa-0000-7000-8000-0000000000ff"
DISPATCH_ID = "0199aaaa-0000-7000-8000-000000000001"
STEP = "ab" * 32
SUBMIT = next(route for route in ROUTES if route.operation == "submit_step")


def request(body: bytes = b"", *, headers: dict[bytes, bytes] | None = None, names: tuple[bytes, ...] = ()) -> Request:
    return Request(
        route=SUBMIT,
        names=names,
        query=b"",
        headers=headers or {},
        body=body,
        caller=Nobody(),
        arrived_at=0,
        deadline=0.0,
    )


def leased(dispatch_id: bytes, attempt: bytes) -> Request:
    return request(headers={b"rebuno-dispatch-id": dispatch_id, b"rebuno-dispatch-attempt": attempt})


def fields(**members: Any) -> dict[str, Any]:
    return read_object(msgspec.json.encode(members)).fields


# ---------------------------------------------------------------- path and headers


def test_an_execution_id_is_read_in_either_case() -> None:
    assert bodies.execution_id_of(request(names=(EXECUTION_ID.upper().encode(),))) == EXECUTION_ID


@pytest.mark.parametrize(
    "segment",
    [
        b"x",
        EXECUTION_ID.replace("-", "").encode(),
        b"{" + EXECUTION_ID.encode() + b"}",
        b"%30" + EXECUTION_ID[1:].encode(),
    ],
)
def test_any_other_spelling_of_an_execution_id_is_invalid(segment: bytes) -> None:
    with pytest.raises(Invalid):
        bodies.execution_id_of(request(names=(segment,)))


@pytest.mark.parametrize("segment", [STEP.upper().encode(), b"x", b"\xe9" * 64, b"a" * 63, b"a" * 65, b"g" * 64])
def test_a_text_that_is_no_step_id_is_an_unknown_step(segment: bytes) -> None:
    step_id = bodies.step_id_of(request(names=(b"", segment)))
    assert step_id == bodies.NO_STEP_ID
    assert STEP_ID.fullmatch(step_id)
    assert bodies.step_id_of(request(names=(b"", STEP.encode()))) == STEP


@pytest.mark.parametrize(("attempt", "number"), [(b"1", 1), (b"007", 7), (b"9" * 400, bodies.ATTEMPT_MAX)])
def test_the_lease_is_read_from_its_headers(attempt: bytes, number: int) -> None:
    assert bodies.lease_of(leased(DISPATCH_ID.upper().encode(), attempt)) == Lease(DISPATCH_ID, number)


@pytest.mark.parametrize("attempt", [b"", b"0", b"000", b"-1", b"+1", b"1.0", b"x", b" 1", b"1, 1", "²".encode()])
def test_an_attempt_that_is_no_integer_from_one_on_is_invalid(attempt: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.lease_of(leased(DISPATCH_ID.encode(), attempt))
    assert refused.value.path == "Rebuno-Dispatch-Attempt"


@pytest.mark.parametrize("dispatch_id", [b"", b"x", b"\xe9", DISPATCH_ID.encode() * 2])
def test_a_dispatch_id_that_is_no_uuid_is_invalid(dispatch_id: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.lease_of(leased(dispatch_id, b"1"))
    assert refused.value.path == "Rebuno-Dispatch-Id"


@pytest.mark.parametrize("key", [b"k", b"~" * 255, b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}"])
def test_a_key_of_visible_ascii_is_taken_as_it_is(key: bytes) -> None:
    assert bodies.header_key(request(headers={b"idempotency-key": key})) == key.decode()


@pytest.mark.parametrize("key", [b"", b"a b", b"\xe9", b"a" * 256, b"\x7f", b"\t", b"\x00"])
def test_any_other_key_is_invalid(key: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.header_key(request(headers={b"idempotency-key": key}))
    assert refused.value.path == "Idempotency-Key"


def test_without_the_header_there_is_no_key() -> None:
    assert bodies.header_key(request()) is None
    assert bodies.request_key(request(), read_object(b"{}"), "/x") is None


def keyed(body: bytes, path: str = "/x") -> Any:
    return bodies.request_key(request(headers={b"idempotency-key": b"k"}), read_object(body), path)


def test_one_key_with_one_canonical_body_is_one_request() -> None:
    assert keyed(b'{"b":1,"a":"\\u00e9"}') == keyed('{ "a":"é", "b":1 }'.encode())
    assert keyed(b'{"a":1}') != keyed(b'{"a":1.0}')
    assert keyed(b'{"a":1}') != keyed(b'{"a":1}', "/y")
    assert keyed(b'{"a":1}').key == keyed(b'{"a":2}', "/y").key


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"deflate, identity", b"\xe9"])
def test_a_body_with_a_content_encoding_is_refused(encoding: bytes) -> None:
    with pytest.raises(Invalid):
        bodies.read_body_object(request(b"{}", headers={b"content-encoding": encoding}))


def test_identity_is_no_encoding() -> None:
    bodies.read_body_object(request(b"{}", headers={b"content-encoding": b"Identity"}))


def test_an_empty_body_counts_only_where_every_field_is_optional() -> None:
    assert bodies.read_body_object(request(), is_optional=True).fields == {}
    with pytest.raises(Invalid):
        bodies.read_body_object(request())


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"x"', b"\xef\xbb\xbf{}", b"{}{}", b"{} x", b" ", b"\xff"])
def test_a_body_that_is_not_one_object_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        bodies.read_body_object(request(body), is_optional=True)


@pytest.mark.parametrize("sent", [{}, {"target": None}, {"target": 1}, {"target": ["a"]}])
def test_a_string_that_has_to_be_there_is_named_when_it_is_not(sent: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.target_of(fields(**sent))
    assert refused.value.path == "target"


def test_a_target_may_be_empty_and_has_1024_bytes_of_utf_8_at_most() -> None:
    assert bodies.target_of(fields(target="")) == ""
    assert bodies.target_of(fields(target="é" * 512)) == "é" * 512
    assert bodies.target_of(fields(target="a" * 1024)) == "a" * 1024
    for target in ("é" * 513, "a" * 1025, "🙂" * 257):
        with pytest.raises(Invalid):
            bodies.target_of(fields(target=target))


@pytest.mark.parametrize("sent", [{}, {"idempotency": ""}, {"idempotency": "safe_to_retry"}])
def test_an_empty_word_counts_as_an_absent_one(sent: dict[str, Any]) -> None:
    assert bodies.optional_choice(fields(**sent), "idempotency", bodies.IDEMPOTENCIES) == "safe_to_retry"


@pytest.mark.parametrize("word", ["never", "Safe_to_retry", 1, None, True])
def test_an_unknown_word_is_invalid(word: Any) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.optional_choice(fields(idempotency=word), "idempotency", bodies.IDEMPOTENCIES)
    assert refused.value.path == "idempotency"


@pytest.mark.parametrize("sent", [{}, {"error": None}])
def test_a_failed_step_needs_an_error(sent: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.error_of_step(fields(**sent))
    assert refused.value.path == "error"


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        ({"message": "m", "code": 1}, b'{"message":"m","code":1}'),
        ("boom", b'{"message":"boom"}'),
        (False, b'{"message":"false"}'),
        ([1, "<"], b'{"message":"[1,\\"\\\\u003c\\"]"}'),
        ("", b'{"message":""}'),
    ],
)
def test_an_error_that_is_no_object_is_recorded_as_the_message_of_one(error: Any, recorded: bytes) -> None:
    assert bytes(bodies.error_of_step(fields(error=error))) == recorded


def test_outcomes_to_settle_keep_their_order_and_their_bytes() -> None:
    document = read_object(
        b'{"settle":[{"step_id":"%s","result":{"b":1.0,"a":null}},{"step_id":"no","error":"x",'
        b'"usage":{"input_tokens":2,"output_tokens":3}},{"step_id":"%s","result":null}]}'
        % (STEP.encode(), STEP.encode())
    )
    assert [msgspec.json.encode(outcome) for outcome in bodies.settle_of(document.fields)] == [
        b'{"step_id":"%s","result":{"b":1.0,"a":null}}' % STEP.encode(),
        b'{"step_id":"%s","error":{"message":"x"},"usage":{"input_tokens":2,"output_tokens":3,"total_tokens":5,'
        b'"cached_tokens":0,"reasoning_tokens":0}}' % bodies.NO_STEP_ID.encode(),
        b'{"step_id":"%s","result":null}' % STEP.encode(),
    ]


@pytest.mark.parametrize(
    ("settle", "path"),
    [
        (None, "settle"),
        ({}, "settle"),
        ("x", "settle"),
        ([1], "settle[0]"),
        ([{}], "settle[0].step_id"),
        ([{"step_id": 1, "result": 1}], "settle[0].step_id"),
        ([{"step_id": STEP}], "settle[0]"),
        ([{"step_id": STEP, "result": 1, "error": "x"}], "settle[0]"),
        ([{"step_id": STEP, "result": 1}, {"step_id": STEP, "error": None}], "settle[1].error"),
        ([{"step_id": STEP, "result": 1, "usage": 5}], "settle[0].usage"),
        ([{"step_id": STEP, "result": 1}] * 257, "settle"),
    ],
)
def test_what_cannot_be_settled_is_named(settle: Any, path: str) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.settle_of(fields(settle=settle))
    assert refused.value.path == path


def test_up_to_256_outcomes_travel_with_one_request() -> None:
    assert len(bodies.settle_of(fields(settle=[{"step_id": STEP, "result": 1}] * 256))) == 256
    assert bodies.settle_of(fields()) == bodies.settle_of(fields(settle=[])) == ()


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({}, Usage()),
        ({"input_tokens": 5, "cached_tokens": 2}, Usage(input_tokens=5, cached_tokens=2, total_tokens=5)),
        ({"input_tokens": 5, "total_tokens": 99}, Usage(input_tokens=5, total_tokens=5)),
        ({"total_tokens": 9, "unknown": "x"}, Usage(total_tokens=9)),
    ],
)
def test_usage_sums_up_and_unknown_counts_are_zero(usage: Any, expected: Usage | None) -> None:
    assert bodies.usage_of(fields(usage=usage)) == expected
    assert bodies.usage_of(fields()) is None


@pytest.mark.parametrize("count", [-1, 1.5, "1", True, 10**12 + 1, 10**30, [1]])
def test_a_token_count_is_a_whole_number_within_bounds(count: Any) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.usage_of(fields(usage={"input_tokens": count}))
    assert refused.value.path == "usage.input_tokens"


# ---------------------------------------------------------------- create


@pytest.mark.parametrize("name", bodies.POSTPONED)
@pytest.mark.parametrize("value", ["x", 1, True, {"execution_id": "x"}, ["x"], 0, False])
def test_a_member_of_a_later_stage_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        bodies.refuse_postponed(fields(**{name: value}))
    assert refused.value.path == name


def test_empty_members_of_a_later_stage_are_accepted() -> None:
    bodies.refuse_postponed(fields(session="", concurrency_key="", parent_execution_id=None, spawned_by={}))


def create(body: bytes, header: bytes | None = None) -> tuple[str | None, str]:
    headers = {} if header is None else {b"idempotency-key": header}
    return bodies.create_key(request(headers=headers), read_object(body))


def test_a_create_has_its_key_from_the_header_or_the_body_and_echoes_the_body_alone() -> None:
    assert create(b"{}") == (None, "")
    assert create(b'{"idempotency_key":""}') == (None, "")
    assert create(b"{}", b"k") == ("k", "")
    assert create(b'{"idempotency_key":"k"}') == ("k", "k")
    assert create(b'{"idempotency_key":"k"}', b"k") == ("k", "k")
    assert create(b'{"idempotency_key":"%s"}' % ("é 🙂" * 85).encode()) == ("é 🙂" * 85, "é 🙂" * 85)


@pytest.mark.parametrize("body", [b'{"idempotency_key":"j"}', b'{"idempotency_key":1}', b'{"idempotency_key":null}'])
def test_a_body_key_that_differs_from_the_header_or_is_no_string_is_invalid(body: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        create(body, b"k")
    assert refused.value.path == "idempotency_key"


def test_a_body_key_of_256_characters_is_invalid() -> None:
    with pytest.raises(Invalid):
        create(b'{"idempotency_key":"%s"}' % (b"a" * 256))


def test_where_the_key_of_a_create_stood_makes_no_other_request_of_it() -> None:
    plain = bodies.create_request_key("k", read_object(b'{"agent_id":"a","input":1}'), "/v0/executions")
    within = bodies.create_request_key(
        "k", read_object(b'{"input":1,"idempotency_key":"k","agent_id":"a"}'), "/v0/executions"
    )
    other = bodies.create_request_key("k", read_object(b'{"agent_id":"a","input":2}'), "/v0/executions")
    assert plain == within
    assert plain != other


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["settle", "usage", "error", "target", "kind", "step_id", "result"]), VALUES))
def test_no_body_makes_the_readers_raise_anything_but_invalid(body: dict[str, Any]) -> None:
    try:
        document = read_object(msgspec.json.encode(body))
    except Invalid:
        return
    for reader in (bodies.settle_of, bodies.usage_of, bodies.error_of_step, bodies.target_of, bodies.refuse_postponed):
        with suppress(Invalid):
            reader(document.fields)
