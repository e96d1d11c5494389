"""Signatures against the vectors of the contract, and against whatever a stranger puts into a header."""

import base64
import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kernel.domain.signatures import sign_body, sign_request, timestamp_ok, verify, verify_body

ROOT = Path(__file__).parents[2]
VECTORS: dict[str, list[dict[str, str]]] = json.loads((ROOT / "tests/golden/vectors.json").read_text("utf-8"))[
    "signatures"
]
SECRET = b"test-secret"
REQUEST: dict[str, Any] = {
    "method": "POST",
    "target": "/v0/executions/alpha/steps?x=a%20b",
    "timestamp": "1700000000",
    "dispatch_id": "01920000-0000-7000-8000-000000000001",
    "attempt": "3",
    "body": '{"text":"é 🙂","n":1.0,"u":"a/b","o":{}}\n'.encode(),
}


def request(**changes: Any) -> dict[str, Any]:
    return REQUEST | changes


def fields_of(vector: dict[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: text for name, text in vector.items() if name not in ("secret", "signature")}
    return fields | {"body": vector["body"].encode()}


@pytest.mark.parametrize("vector", VECTORS["v1"], ids=lambda vector: vector["target"])
def test_every_v1_vector_is_made_and_verified(vector: dict[str, str]) -> None:
    secret, fields = vector["secret"].encode(), fields_of(vector)
    assert sign_request(secret, **fields) == vector["signature"]
    assert verify([secret], vector["signature"], **fields)
    assert verify([secret], vector["signature"], **fields, require_v1=True)


@pytest.mark.parametrize("vector", VECTORS["sha256"], ids=lambda vector: vector["body"] or "empty")
def test_every_sha256_vector_is_made_and_verified(vector: dict[str, str]) -> None:
    secret, body = vector["secret"].encode(), vector["body"].encode()
    assert sign_body(secret, body) == vector["signature"]
    assert verify([secret], vector["signature"], **request(body=body))
    assert verify_body([secret], vector["signature"], body)


@pytest.mark.parametrize("vector", VECTORS["delegation"], ids=lambda vector: vector["agent_id"])
def test_the_delegation_vector_follows_its_recipe(vector: dict[str, str]) -> None:
    names = ("agent_id", "execution_id", "dispatch_id", "attempt", "expiry")
    text = "\n".join(vector[name] for name in names).encode()
    mac = hmac.new(vector["secret"].encode(), b"rebuno-delegation-v1\n" + text, hashlib.sha256).hexdigest()
    assert vector["token"] == base64.urlsafe_b64encode(text).rstrip(b"=").decode() + "." + mac


def test_the_golden_file_holds_exactly_the_signatures_of_the_contract() -> None:
    contract = (ROOT / "docs/contract.md").read_text("utf-8")
    section = contract[contract.index("## 2. ") : contract.index("## 3. ")]
    held = {vector.get("signature") or vector["token"] for vectors in VECTORS.values() for vector in vectors}
    assert held == set(re.findall(r"`((?:v1=|sha256=|[A-Za-z0-9_-]+\.)[0-9a-f]{64})`", section))


def test_the_v1_text_is_six_lines_and_the_raw_body() -> None:
    lines = (b"rebuno-request-v1", b"PUT", b"/a?b", b"17", b"", b"")
    text = b"".join(line + b"\n" for line in lines) + b"\xff\x00body"
    expected = "v1=" + hmac.new(SECRET, text, hashlib.sha256).hexdigest()
    fields: dict[str, Any] = {"method": "put", "target": b"/a?b", "timestamp": b"17", "dispatch_id": "", "attempt": b""}
    assert sign_request(SECRET, **fields, body=b"\xff\x00body") == expected


@pytest.mark.parametrize(
    "change",
    [
        {"method": "GET"},
        {"target": "/v0/executions/alpha/steps?x=a b"},
        {"target": "/v0/executions/alpha/steps"},
        {"timestamp": "1700000001"},
        {"timestamp": "01700000000"},
        {"dispatch_id": "01920000-0000-7000-8000-000000000002"},
        {"dispatch_id": ""},
        {"attempt": "4"},
        {"attempt": "03"},
        {"body": REQUEST["body"].rstrip(b"\n")},
        {"body": REQUEST["body"] + b"\n"},
        {"body": b""},
    ],
    ids=lambda change: repr(change)[:60],
)
def test_one_changed_field_ends_a_v1_signature(change: dict[str, Any]) -> None:
    signature = sign_request(SECRET, **REQUEST)
    assert verify([SECRET], signature, **REQUEST)
    assert not verify([SECRET], signature, **request(**change))


def test_the_method_counts_without_its_case() -> None:
    signature = sign_request(SECRET, **REQUEST)
    assert verify([SECRET], signature, **request(method=b"post"))


def test_a_body_signature_covers_the_exact_bytes_and_nothing_else() -> None:
    # Case W1: neither a lost line break nor another spelling of the same JSON verifies.
    body: bytes = REQUEST["body"]
    signature = sign_body(SECRET, body)
    assert verify_body([SECRET], signature, body)
    assert verify([SECRET], signature, **request(method="GET", target="/", timestamp=""))
    respelled = json.dumps(json.loads(body)).encode()
    for other in (body.rstrip(b"\n"), body + b"\n", respelled, body.replace(b"1.0", b"1"), b""):
        assert not verify_body([SECRET], signature, other)
        assert not verify([SECRET], signature, **request(body=other))


def test_any_of_several_secrets_verifies_and_no_other() -> None:
    for signature in (sign_request(b"old", **REQUEST), sign_body(b"old", REQUEST["body"])):
        assert verify([b"new", b"old"], signature, **REQUEST)
        assert verify([b"old", b"new"], signature, **REQUEST)
        assert not verify([b"new", b"older", b""], signature, **REQUEST)
        assert not verify([], signature, **REQUEST)


def test_require_v1_refuses_a_good_body_signature() -> None:
    assert not verify([SECRET], sign_body(SECRET, REQUEST["body"]), **REQUEST, require_v1=True)


def test_the_two_schemes_never_stand_for_each_other() -> None:
    v1, sha256 = sign_request(SECRET, **REQUEST), sign_body(SECRET, REQUEST["body"])
    assert not verify([SECRET], v1.replace("v1=", "sha256="), **REQUEST)
    assert not verify([SECRET], sha256.replace("sha256=", "v1="), **REQUEST)
    assert not verify_body([SECRET], v1, REQUEST["body"])
    assert not verify_body([SECRET], "v1=" + sha256.removeprefix("sha256="), REQUEST["body"])


def test_a_line_feed_cannot_move_a_field_into_its_neighbour() -> None:
    # Given two requests whose signed text is one, because a field of the second holds a line feed
    first = request(dispatch_id="id")
    attempt = REQUEST["body"].removesuffix(b"\n")
    second = request(timestamp=f"{REQUEST['timestamp']}\nid", dispatch_id="3", attempt=attempt, body=b"")
    signature = sign_request(SECRET, **first)
    assert sign_request(SECRET, **second) == signature
    # Then the signature holds for the first alone
    assert verify([SECRET], signature, **first)
    assert not verify([SECRET], signature, **second)


GOOD = sign_request(SECRET, **REQUEST)
HEX = GOOD.removeprefix("v1=")


@pytest.mark.parametrize(
    "header",
    [
        "",
        b"",
        "é",
        b"\xe9",
        "\ud800",
        "\x00",
        b"\x00" + GOOD.encode(),
        GOOD + "\x00",
        GOOD + " ",
        GOOD + "\n",
        " " + GOOD,
        f"{GOOD}, {GOOD}",
        f"{GOOD},{GOOD}",
        GOOD.upper(),
        "V1=" + HEX,
        "v1=" + HEX.upper(),
        "v2=" + HEX,
        "v1 =" + HEX,
        HEX,
        "v1=",
        "sha256=",
        "v1=" + HEX[:-1],
        "v1=" + HEX + "0",
        "v1=" + HEX[:-1] + "é",
        "v1=" + HEX[:-1] + "\u0663",
        "v1=" + HEX[:-1] + ("0" if HEX[-1] != "0" else "1"),
        "v1=" + ("0" if HEX[0] != "0" else "1") + HEX[1:],
        "x" * 100_000,
        "v1=" + "0" * 100_000,
        b"\xff" * 100_000,
    ],
    ids=lambda header: repr(header[:12]) + str(len(header)),
)
def test_an_odd_header_is_false_and_never_raises(header: str | bytes) -> None:
    # Case T3
    assert verify([SECRET], GOOD, **REQUEST)
    assert verify([SECRET], header, **REQUEST) is False
    assert verify_body([SECRET], header, REQUEST["body"]) is False


@pytest.mark.parametrize("name", ["method", "target", "timestamp", "dispatch_id", "attempt"])
@pytest.mark.parametrize("odd", [b"\xe9", "\xe9", "\ud800", "\x00", "", "x" * 100_000], ids=repr)
def test_an_odd_field_is_false_and_never_raises(name: str, odd: str | bytes) -> None:
    assert verify([SECRET], GOOD, **request(**{name: odd})) is False


def test_bytes_and_their_utf8_text_are_one() -> None:
    as_bytes: dict[str, Any] = {
        name: part.encode() if isinstance(part, str) else part for name, part in REQUEST.items()
    }
    assert sign_request(SECRET, **as_bytes) == GOOD
    assert verify([SECRET], GOOD.encode(), **as_bytes)


@pytest.mark.parametrize(
    ("offset", "accepted"),
    [(0, True), (299, True), (300, True), (301, False), (-299, True), (-300, True), (-301, False)],
)
def test_a_timestamp_holds_inside_the_window_either_way(offset: int, accepted: bool) -> None:
    now = 1_700_000_000
    assert timestamp_ok(str(now + offset), now, 300) is accepted


@pytest.mark.parametrize(
    "text",
    [
        *("", " 1700000000", "1700000000 ", "1700000000\n", "+1700000000", "-1700000000", "1700000000.0"),
        *("1_700_000_000", "0x6553f100", "17e8", "170000000\u0660", "1700000000é", "\ud800", "\x00", "nan"),
        *("9" * 5000, "0" * 5000),
    ],
    ids=lambda text: repr(text)[:20],
)
def test_a_timestamp_that_is_not_decimal_digits_is_refused(text: str) -> None:
    assert timestamp_ok(text, 1_700_000_000, 10**9 * 2) is False
