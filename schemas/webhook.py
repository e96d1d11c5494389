"""The body of a webhook: exactly five members, built anew for every attempt."""

import msgspec


class WebhookBody(msgspec.Struct, frozen=True):
    """`sent_at` is unix seconds of this attempt, so that the signature covers the time."""

    execution_id: str
    dispatch_id: str
    dispatch_attempt: int
    lease_timeout_seconds: int | float
    sent_at: int


_encoder = msgspec.json.Encoder()


def encode_webhook(body: WebhookBody) -> bytes:
    """Return the exact bytes that are signed and sent."""
    return _encoder.encode(body)
