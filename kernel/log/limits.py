"""Every bound and period of the log's adapters, and the error for an entry beyond them."""

import msgspec

from kernel.domain.errors import LogUnavailable

_MIB = 1024 * 1024


class LogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults suit every process; tests shorten the periods."""

    connect_seconds: float = 10.0
    """For the first connection, over all tries."""
    connect_try_seconds: float = 3.0
    reconnect_seconds_min: float = 0.1
    reconnect_seconds_max: float = 0.25
    """Between two tries; random in between, so that a fleet does not come back in step."""
    close_seconds: float = 2.0
    """For what is already written to leave when the connection is closed in order."""
    look_seconds: float = 0.25
    """Between two looks at the connection, should the driver end without saying so."""
    ping_seconds: int = 2
    pings_unanswered_max: int = 2
    """A peer that is there but dead is given up after this many, plus one."""

    unacknowledged_max: int = 8192
    """Publishes and questions that wait for the broker at once."""
    send_buffer_bytes_max: int = 64 * _MIB
    """What may wait for the socket before a publish is refused."""
    acknowledgement_seconds_max: float = 30.0
    """A publish that the broker has not spoken of by then is forgotten; its callback is never called."""
    silence_of_acknowledgements_seconds: float = 5.0
    """Without the acknowledgement that a publish waits for; then the stream counts as silent."""
    silence_probe_seconds: float = 1.0
    """Between two publishes into a silent stream."""
    request_seconds: float = 4.0
    """For one answer of the broker's API."""
    republish_seconds: float = 2.0
    append_pause_seconds: float = 0.1
    """Before an append tries again after a refusal."""

    entry_bytes_max: int = 6 * _MIB
    message_reserve_bytes: int = 64 * 1024
    """Kept free below the broker's max_payload, for headers and for what the broker adds on the way out."""

    follow_messages_max: int = 32_768
    follow_bytes_max: int = 16 * _MIB
    """What a follower holds for its reader; beyond that it stops its consumer until half is read."""
    silence_seconds_min: float = 0.5
    silence_seconds_max: float = 5.0
    """Without a message while the head is further: then the consumer is made anew, each time with more patience."""
    heartbeat_seconds: float = 1.0
    inactive_seconds: float = 5.0
    """After which the broker drops a consumer that nobody listens to."""

    control_page_messages_max: int = 4096
    control_page_bytes_max: int = 16 * _MIB
    control_reads_max: int = 128
    """Control messages asked for at once."""


class EntryTooLarge(LogUnavailable):
    """The message is above what the broker takes. It was not sent, and never can be."""
