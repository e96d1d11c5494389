"""Signatures of the library are those that the kernel checks."""

from hypothesis import given
from hypothesis import strategies as st

from kernel.domain import signatures
from stepwell import Lease
from stepwell.signing import is_webhook_sound, sign_request

texts = st.text(st.characters(codec="ascii", exclude_characters="\n\r"), max_size=40)


@given(
    secret=st.text(min_size=1), target=texts, timestamp=st.integers(0, 2**40), body=st.binary(), attempt=st.integers(1)
)
def test_a2_v1_covers_what_the_kernel_checks(
    secret: str, target: str, timestamp: int, body: bytes, attempt: int
) -> None:
    lease = Lease("0199aaaa-0000-7000-8000-0000000000ff", attempt)

    ours = sign_request(secret, method="POST", target=target, timestamp=timestamp, lease=lease, body=body)

    expected = signatures.sign_request(
        secret.encode(),
        method="POST",
        target=target,
        timestamp=str(timestamp),
        dispatch_id=lease.dispatch_id,
        attempt=str(attempt),
        body=body,
    )
    assert ours == expected


def test_a2_without_a_lease_its_fields_are_empty() -> None:
    ours = sign_request("s", method="GET", target="/v0/x?y=1", timestamp=7, lease=None, body=b"")

    expected = signatures.sign_request(
        b"s", method="GET", target="/v0/x?y=1", timestamp="7", dispatch_id="", attempt="", body=b""
    )
    assert ours == expected


@given(secret=st.text(min_size=1), body=st.binary())
def test_a2_sha256_covers_the_body_alone(secret: str, body: bytes) -> None:
    ours = sign_request(secret, method="POST", target="/x", timestamp=1, lease=None, body=body, scheme="sha256")

    assert ours == signatures.sign_body(secret.encode(), body)


@given(body=st.binary())
def test_a3_a_webhook_is_sound_under_either_secret_and_no_other(body: bytes) -> None:
    signed = signatures.sign_body(b"the next one", body)

    assert is_webhook_sound(["old", "the next one"], body, signed)
    assert not is_webhook_sound(["old"], body, signed)
    assert not is_webhook_sound(["the next one"], body + b"x", signed)
    assert not is_webhook_sound(["old"], body, "")
    assert not is_webhook_sound(["old"], body, "sha256=\u00e4\u20ac")
