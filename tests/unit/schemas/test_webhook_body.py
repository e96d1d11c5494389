"""The webhook's body: exactly five members, in one order."""

import json

from schemas.webhook import WebhookBody, encode_webhook

BODY = WebhookBody(
    execution_id="0199aaaa-0000-7000-8000-0000000000ff",
    dispatch_id="0199aaaa-0000-7000-8000-000000000002",
    dispatch_attempt=2,
    lease_timeout_seconds=120,
    sent_at=1_760_000_000,
)


def test_the_body_has_exactly_five_members() -> None:
    assert list(json.loads(encode_webhook(BODY))) == [
        "execution_id",
        "dispatch_id",
        "dispatch_attempt",
        "lease_timeout_seconds",
        "sent_at",
    ]


def test_whole_seconds_are_an_integer_and_parts_of_one_are_kept() -> None:
    assert b'"lease_timeout_seconds":120,' in encode_webhook(BODY)
    half = WebhookBody(
        execution_id="e", dispatch_id="d", dispatch_attempt=1, lease_timeout_seconds=12.5, sent_at=1_760_000_000
    )
    assert b'"lease_timeout_seconds":12.5,' in encode_webhook(half)
