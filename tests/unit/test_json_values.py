"""Reading client JSON: what is refused and where, and what is kept."""

import json

import msgspec
import pytest

from kernel.domain.errors import Invalid
from kernel.domain.json_values import (
    PATH_CHARS_MAX,
    Document,
    error_record,
    items,
    members,
    read_exactly,
    read_object,
    read_value,
)

LENIENT = frozenset({"error", "settle[].error"})


def refusal(body: str | bytes, *, lenient: frozenset[str] = LENIENT) -> Invalid:
    with pytest.raises(Invalid) as refused:
        read_object(body.encode() if isinstance(body, str) else body, lenient=lenient)
    return refused.value


def lenient_document(body: str) -> Document:
    return read_object(body.encode(), lenient=LENIENT)


# --- What a body must be


def test_a_body_gives_its_members_in_order_and_in_three_forms() -> None:
    document = read_object(b' {"kind" : "local", "args": {"b": 1.0, "a": "\\u00e9<"}, "n": 3}\n')
    assert list(document.fields) == ["kind", "args", "n"]
    args = document.fields["args"]
    assert args.plain == {"b": msgspec.Raw(b"1.0"), "a": "é<"}
    assert args.raw == '{"b":1.0,"a":"é<"}'.encode()
    assert args.canonical == '{"a":"é\\u003c","b":1.0}'.encode()
    assert args.path == "args"
    assert document.fields["n"].plain == 3
    assert document.value.raw == '{"kind":"local","args":{"b":1.0,"a":"é<"},"n":3}'.encode()


def test_a_body_is_compared_without_the_members_that_do_not_count() -> None:
    document = read_object(b'{"idempotency_key":"k","b":[1],"a":{"idempotency_key":2}}')
    assert document.canonical_without("idempotency_key") == b'{"a":{"idempotency_key":2},"b":[1]}'
    assert document.canonical_without() == document.value.canonical


@pytest.mark.parametrize("body", ["[]", "1", '"a"', "null", "true", "-0", "[{}]"])
def test_a_body_that_is_no_object_is_refused(body: str) -> None:
    fault = refusal(body)
    assert fault.reason == "the body must be a JSON object"
    assert fault.path == ""


MALFORMED = [
    b"",
    b" ",
    b"\xef\xbb\xbf{}",
    b"{}{}",
    b"{} x",
    b"{}\x00",
    b"{},",
    b"{}]",
    b"]",
    b"}",
    b",",
    b":",
    b"{",
    b"[",
    b'{"a"}',
    b'{"a":}',
    b'{"a":1',
    b'{"a":1,}',
    b'{"a":1 "b":2}',
    b'{"a" 1}',
    b'{"a",1}',
    b'{"a":1:2}',
    b'{"a":"b":2}',
    b'{"a"::1}',
    b'{"a":1,,"b":2}',
    b"{,}",
    b"{:1}",
    b"{1:2}",
    b"{null:2}",
    b"{[]:2}",
    b'{{"a":1}:2}',
    b"{a:1}",
    b"{'a':1}",
    b'"a":1',
    b'{"a":[1}',
    b'{"a":1]',
    b'{"a":[}',
    b'{"a":{]}',
    b'{"a":[,]}',
    b'{"a":[1,]}',
    b'{"a":[1 2]}',
    b'{"a":[1[]]}',
    b'{"a":[[]1]}',
    b'{"a":["b":1]}',
    b'{"a":[:]}',
    b'{"a":01}',
    b'{"a":-}',
    b'{"a":+1}',
    b'{"a":1.}',
    b'{"a":.5}',
    b'{"a":1e}',
    b'{"a":1e+}',
    b'{"a":0x10}',
    b'{"a":1_0}',
    b'{"a":- 1}',
    b'{"a":True}',
    b'{"a":nul}',
    b'{"a":nulll}',
    b'{"a":truefalse}',
    b'{"a":"b}',
    b'{"a":"\x1f"}',
    b'{"a":"\n"}',
    b'{"a":"\\x"}',
    b'{"a":"\\u12g4"}',
    b'{"a":"\\u+123"}',
    b'{"a":"\\ud83d\\u12"}',
    b'{"a":"\\',
    b'{"a":1}\x0b',
    b'{"a":\x0c1}',
    b'{"a":\xc2\xa01}',
    b'{"a":1/*c*/}',
    '{"a":\u0661}'.encode(),
]


@pytest.mark.parametrize("body", MALFORMED)
def test_malformed_text_is_refused_by_both_readers(body: bytes) -> None:
    assert refusal(body).reason == "not valid JSON"
    with pytest.raises(Invalid, match="not valid JSON"):
        read_exactly(body)


def test_a_fault_of_grammar_names_the_place_before_it() -> None:
    assert refusal('{"args":{"items":[1,2,{"price":x}]}}').path == "args.items[2].price"


# --- Numbers


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_tokens_that_are_no_numbers_are_refused_with_their_path(token: str) -> None:
    # Case C2
    fault = refusal(f'{{"args":{{"items":[1,2,3,{{"price":{token}}}]}}}}')
    assert fault.path == "args.items[3].price"
    assert "NaN" in fault.reason


INFINITE = [
    "1e400",
    "-1e400",
    "1.5E+309",
    "2e308",
    "9" * 309,
    "-" + "9" * 309,
    "1" * 400,
    "1" * 5000,
    "1" + "0" * 400 + ".5",
    "1e" + "9" * 1000,
]


@pytest.mark.parametrize("literal", INFINITE, ids=lambda literal: f"{literal[:9]}-{len(literal)}")
def test_a_number_that_would_be_infinite_is_refused_with_its_path(literal: str) -> None:
    fault = refusal(f'{{"result":[0,{literal}]}}')
    assert fault.path == "result[1]"
    assert "binary64" in fault.reason


def test_an_infinite_integer_is_found_wherever_it_stands() -> None:
    # The search looks at samples of the text, so every position relative to them counts.
    for offset in range(310):
        assert refusal(f'{{"pad":"{"x" * offset}","n":{"9" * 309}}}').path == "n"


FINITE = [
    "1e308",
    "-1.7976931348623157e308",
    "9" * 308,
    "-" + "9" * 308,
    "1" * 309,
    "17976931348623157" + "0" * 292,
    "0." + "1" * 400,
    "1" * 400 + "e-300",
    "1e-99999",
    "0e99999",
    "-0",
    "-0.0",
    "-0e0",
    "0",
    "12345678901234567890123",
]


@pytest.mark.parametrize("literal", FINITE, ids=lambda literal: f"{literal[:9]}-{len(literal)}")
def test_every_finite_literal_is_kept_character_for_character(literal: str) -> None:
    body = f'{{"result":[0,{literal}]}}'.encode()
    field = read_object(body).fields["result"]
    assert field.raw == field.canonical == f"[0,{literal}]".encode()
    assert read_value(field.raw) == read_value(f" [ 0 , {literal} ]\n".encode())


def test_a_whole_number_is_plain_only_where_its_literal_is() -> None:
    plain = read_value(b"[7,-7,0,-0,7.0,7e0,18446744073709551616]").plain
    raw = msgspec.Raw
    assert plain == [7, -7, 0, raw(b"-0"), raw(b"7.0"), raw(b"7e0"), 18446744073709551616]


@pytest.mark.parametrize(
    "text", ['"-0"', '"x, -0, y"', '"-0 "', '"0199aaaa-0000-7000-8000-0000000000ff"', '"2026-01-02"', "[-0]", "-0 "]
)
def test_what_looks_like_negative_zero_stays_what_it_is(text: str) -> None:
    assert read_value(text.encode()).raw == text.encode().strip()


# --- Strings


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ('{"args":{"t":"\\ud800"}}', "args.t"),
        ('{"args":{"t":["a","\\uDC00x"]}}', "args.t[1]"),
        ('{"args":{"t":"\\ud800\\ud800"}}', "args.t"),
        ('{"args":{"t":"\\udc00\\ud800"}}', "args.t"),
        ('{"args":{"\\udc00":1}}', "args"),
        ('{"args":{"a":1,"\\ud83d":1}}', "args"),
        ('{"\\ud800":1}', ""),
        ('{"target":"\\ud83d"}', "target"),
        ('{"args":{"error":"\\ud800"}}', "args.error"),
        ('{"settle":{"error":"\\ud800"}}', "settle.error"),
        ('{"settle":[{"result":"\\ud800"}]}', "settle[0].result"),
        ('{"settle":[{"error":1},{"error":"\\ud800","x":"\\ud800"}]}', "settle[1].x"),
        ('{"settle":[[{"error":"\\ud800"}]]}', "settle[0][0].error"),
        ('{"settle[]":{"error":"\\ud800"}}', "settle[].error"),
        ('{"error":"\\ud800","result":"\\ud800"}', "result"),
        ('{"error":{"\\ud800":[{}]},"\\ud800":1}', ""),
        ('{"x":"\\ud800","x":1}', "x"),
    ],
)
def test_a_lone_surrogate_is_refused_with_its_path(body: str, path: str) -> None:
    # Case C3
    fault = refusal(body)
    assert (fault.reason, fault.path) == ("the string has a lone surrogate", path)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (r'"a\ud800b"', '"a\ufffdb"'),
        (r'"\ud800\ud800\udc00"', '"\ufffd\U00010000"'),
        (r'"\udc00\ud800"', '"\ufffd\ufffd"'),
        (r'"\\ud800\ud800"', '"\\\\ud800\ufffd"'),
        (r'{"message":["\udfff",{"\udbff":-0}]}', '{"message":["\ufffd",{"\ufffd":-0}]}'),
        (r'{"\ud800":1,"b":2,"\udc00":3}', '{"\ufffd":3,"b":2}'),
        (r'{"\ud800":1,"\udc00":2,"\ud800":3}', '{"\ufffd":3}'),
    ],
)
def test_in_an_error_a_lone_surrogate_becomes_the_replacement_character(error: str, expected: str) -> None:
    document = lenient_document(f'{{"error":{error},"settle":[{{"result":1}},{{"error":{error}}}],"error2":1}}')
    assert document.fields["error"].raw == expected.encode()
    assert members(items(document.fields["settle"])[1])["error"].raw == expected.encode()


def test_a_lenient_member_ends_where_it_ends() -> None:
    lenient = frozenset({"error", "error.inner"})
    document = read_object(b'{"error":{"inner":"\\ud800","x":"\\ud800"},"y":1}', lenient=lenient)
    assert document.fields["error"].plain == {"inner": "\ufffd", "x": "\ufffd"}
    assert refusal('{"error":{"inner":1},"y":"\\ud800"}', lenient=lenient).path == "y"


def test_without_leave_an_error_is_read_as_everything_else() -> None:
    assert refusal('{"error":"\\ud800"}', lenient=frozenset()).path == "error"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"args":{"t":"\xff"}}', "args.t"),
        (b'{"args":[0,"a\xc0\x80"]}', "args[1]"),
        (b'{"args":[0,"\xed\xa0\x80"]}', "args[1]"),
        (b'{"args":{"a":1,"\xe9":1}}', "args"),
        (b'{"error":"\xff"}', "error"),
        (b'{"a":1}\xff', ""),
        (b"\xff", ""),
    ],
)
def test_bytes_that_are_not_utf8_are_refused_with_their_path(body: bytes, path: str) -> None:
    fault = refusal(body)
    assert (fault.reason, fault.path) == ("not valid UTF-8", path)


def test_of_two_faults_the_first_is_named() -> None:
    fault = refusal(b'{"a":1e400,"b":"\xff"}')
    assert (fault.reason, fault.path) == ("the number is outside the range of a binary64", "a")


def test_every_character_survives_reading_and_writing() -> None:
    # Case C3: composed and decomposed text stay apart; U+0000 is a character like any other.
    text = "caf\u00e9 cafe\u0301 \x00\x1f\x7f\u2028\uffff\ufeff😀\U0010ffff"
    for spelled in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        value = read_object(f'{{"args":{spelled},"z":-0}}'.encode()).fields["args"]
        assert value.plain == text
        assert json.loads(value.raw) == json.loads(value.canonical) == text
        assert read_value(value.raw) == read_value(spelled.encode())


# --- Duplicates


@pytest.mark.parametrize("extra", ["1", "-0"], ids=["fast", "exact"])
def test_the_last_duplicate_wins_in_the_place_of_the_first(extra: str) -> None:
    # Case C5: one value for every purpose.
    body = f'{{"target":"a","x":{extra},"args":{{"amount":1,"z":0,"am\\u006funt":9999}},"target":"b"}}'
    document = read_object(body.encode())
    assert list(document.fields) == ["target", "x", "args"]
    assert document.fields["target"].plain == "b"
    args = document.fields["args"]
    assert args.plain == {"amount": 9999, "z": 0}
    assert args.raw == args.canonical == b'{"amount":9999,"z":0}'
    assert b'"target":"b"' in document.value.canonical


def test_a_fault_in_a_value_that_a_duplicate_replaces_is_still_a_fault() -> None:
    assert refusal('{"args":{"a":NaN,"a":1}}').path == "args.a"
    assert refusal('{"args":{"a":1e400,"a":1}}').path == "args.a"


# --- Paths


def test_a_path_is_bounded_and_holds_no_surrogate() -> None:
    assert len(refusal(json.dumps({"k" * 10_000: {"j": float("nan")}})).path) == PATH_CHARS_MAX
    assert refusal('{"error":{"\\ud800":NaN}}').path == "error.\ufffd"


# --- Values inside values


def test_members_and_items_keep_their_paths() -> None:
    document = read_object(b'{"settle":[{"step_id":"s","result":1.0},{"error":{"b":1,"a":2}}]}')
    first, second = items(document.fields["settle"])
    assert members(first)["result"].raw == b"1.0"
    assert members(first)["result"].path == "settle[0].result"
    assert members(second)["error"].raw == b'{"b":1,"a":2}'
    assert members(document.value)["settle"].path == "settle"
    assert items(read_value(b"[[1]]"))[0].path == "[0]"


def test_members_of_no_object_and_items_of_no_array_are_refused_with_their_path() -> None:
    document = read_object(b'{"settle":[1],"args":{}}')
    with pytest.raises(Invalid, match="must be an object") as no_object:
        members(items(document.fields["settle"])[0])
    assert no_object.value.path == "settle[0]"
    with pytest.raises(Invalid, match="must be an array") as no_array:
        items(document.fields["args"])
    assert no_array.value.path == "args"


@pytest.mark.parametrize(
    ("error", "record"),
    [
        ('{ "message" : "m", "code": 1.0, "code": 2.0 }', '{"message":"m","code":2.0}'),
        ("{}", "{}"),
        ('"bo\\u006fm \\"<\\u00e9>\\""', '{"message":"boom \\"<é>\\""}'),
        ('""', '{"message":""}'),
        ("1.50", '{"message":"1.50"}'),
        ("-0", '{"message":"-0"}'),
        ("false", '{"message":"false"}'),
        ('[{"b":"<","a":1e0}]', '{"message":"[{\\"a\\":1e0,\\"b\\":\\"\\\\u003c\\"}]"}'),
    ],
)
def test_an_error_is_recorded_as_an_object(error: str, record: str) -> None:
    assert error_record(read_value(error.encode())) == record.encode()
