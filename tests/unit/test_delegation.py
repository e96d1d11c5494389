"""Delegation tokens against the contract's vector, and against whatever a stranger makes of them."""

import base64
import hmac
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.delegation import AHEAD_SECONDS_MAX, SKEW_SECONDS, TOKEN_BYTES_MAX, Delegation, mint, verified
from schemas.entries import Lease

GOLDEN = Path(__file__).parents[1] / "golden" / "vectors.json"
VECTORS: list[dict[str, str]] = json.loads(GOLDEN.read_text("utf-8"))["signatures"]["delegation"]
SECRET = b"the secret of an agent"
NOW = 1_760_000_000
GIVEN = Delegation(
    agent_id="researcher",
    execution_id="0199aaaa-0000-7000-8000-0000000000ff",
    lease=Lease("0199aaaa-0000-7000-8000-000000000001", 2),
    expires_at=NOW + 60,
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["agent_id"])
def test_the_vector_is_minted_and_verified(vector: dict[str, str]) -> None:
    delegation = Delegation(
        agent_id=vector["agent_id"],
        execution_id=vector["execution_id"],
        lease=Lease(vector["dispatch_id"], int(vector["attempt"])),
        expires_at=int(vector["expiry"]),
    )
    secret = vector["secret"].encode()
    assert mint(secret, delegation) == vector["token"]
    assert verified([secret], vector["token"].encode(), now_seconds=delegation.expires_at - 1) == delegation


def test_either_secret_of_a_rotation_will_do() -> None:
    token = mint(SECRET, GIVEN).encode()
    assert verified([b"another", SECRET], token, now_seconds=NOW) == GIVEN
    assert verified([b"another"], token, now_seconds=NOW) is None
    assert verified([], token, now_seconds=NOW) is None


@pytest.mark.parametrize(
    ("expires_in", "is_good"),
    [
        (-SKEW_SECONDS, True),
        (-SKEW_SECONDS - 1, False),
        (AHEAD_SECONDS_MAX + SKEW_SECONDS, True),
        (AHEAD_SECONDS_MAX + SKEW_SECONDS + 1, False),
    ],
)
def test_a_token_has_its_time(expires_in: int, is_good: bool) -> None:
    token = mint(SECRET, msgspec.structs.replace(GIVEN, expires_at=NOW + expires_in)).encode()
    assert (verified([SECRET], token, now_seconds=NOW) is not None) == is_good


@given(at=st.integers(min_value=0), new=st.integers(min_value=0, max_value=255))
def test_a_token_with_any_byte_changed_is_none(at: int, new: int) -> None:
    token = bytearray(mint(SECRET, GIVEN).encode())
    at %= len(token)
    if token[at] != new:
        token[at] = new
        assert verified([SECRET], bytes(token), now_seconds=NOW) is None


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(token: bytes) -> None:
    assert verified([SECRET], token, now_seconds=NOW) is None


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("text", ["", "x\ny", "-1", "0", "0199aaaa-0000-7000-8000-0000000000f", "z" * 36, "9" * 13])
def test_a_signed_text_that_says_nothing_is_none(position: int, text: str) -> None:
    fields = [GIVEN.agent_id, GIVEN.execution_id, GIVEN.lease.dispatch_id, "2", str(GIVEN.expires_at)]
    fields[position] = text
    signed = "\n".join(fields).encode()
    # Signed rightly, so that only what it says is wrong.
    token = forged(signed)
    good = verified([SECRET], token, now_seconds=NOW)
    assert good is None or (position == 0 and good.agent_id == text)


def test_a_token_is_no_longer_than_a_header_may_be() -> None:
    assert verified([SECRET], b"A" * TOKEN_BYTES_MAX + b"." + b"0" * 64, now_seconds=NOW) is None
    assert verified([SECRET], b"A." + b"0" * 64, now_seconds=NOW) is None


def test_a_token_has_one_spelling() -> None:
    encoded, _, mac = mint(SECRET, GIVEN).partition(".")
    assert len(encoded) % 4 != 0, "the last digit has spare bits"
    others = [encoded[:-1] + digit for digit in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"]
    good = [each for each in others if verified([SECRET], f"{each}.{mac}".encode(), now_seconds=NOW)]
    assert good == [encoded]


def forged(text: bytes) -> bytes:
    """Sign any text as a token is signed."""
    mac = hmac.digest(SECRET, b"rebuno-delegation-v1\n" + text, "sha256").hex()
    return base64.urlsafe_b64encode(text).rstrip(b"=") + b"." + mac.encode()
