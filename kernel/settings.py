"""The settings of a process, read once. Durations are seconds (floats) or milliseconds where the name says so."""

from ipaddress import IPv4Network, IPv6Network

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every bound and period has its name here."""

    mode: str = "server"
    """`dev` or `server`."""
    no_policy: str = ""
    """`allow` or `deny`: what an agent without a bundle may do; empty: allow in dev, deny in server."""
    listen_host: str = "0.0.0.0"  # noqa: S104 - `:8080` means every interface, as the contract's default says
    listen_port: int = 8080
    shards: int = 8
    nats_url: str = ""
    redis_url: str = ""
    master_key: str = msgspec.field(default="")
    api_key: str = ""
    operator_key: str = ""
    log_level: str = "info"

    attempts_max: int = 5
    lease_seconds: float = 120.0
    delivery_seconds: float = 30.0
    base_delay_seconds: float = 1.0
    delay_seconds_max: float = 30.0
    unreachable_seconds: float = 300.0
    deadline_seconds: float | None = None
    life_seconds: float = 720 * 3600.0
    approval_timeout_seconds: float = 15 * 60.0
    """How long an approval waits for a decision where its rule names no time of its own."""
    signature_window_seconds: int = 300
    public_prefixes: tuple[str, ...] = ()
    webhook_allow_networks: tuple[IPv4Network | IPv6Network, ...] = ()

    budget_seconds: float = 25.0
    drain_seconds: float = 25.0
    body_bytes_max: int = 32 * 1024 * 1024
    bodies_held_bytes_max: int = 512 * 1024 * 1024
    entry_bytes_max: int = 6 * 1024 * 1024
    answer_poll_seconds: float = 0.2
    republish_seconds: float = 2.0
    in_flight_max: int = 4096
    """Requests a door lets wait for the log at once; more wait inside their budget."""
    in_flight_share_max: int = 256
    """Of these, those of one tenant in one shard."""
    requests_open_max: int = 16_384
    """Requests a door has open at once, whatever they wait for; more are refused."""
    requests_open_share_max: int = 4096
    """Of these, those of one tenant."""
    clock_skew_seconds_max: float = 1.0
    control_lag_seconds_max: float = 1.0
    control_poll_seconds: float = 0.25

    batch_entries_max: int = 256
    batch_bytes_max: int = 1024 * 1024
    batch_commands_max: int = 4000
    owner_ttl_seconds: float = 2.0
    cached_executions_max: int = 4096
    unreferenced_seconds: float = 2 * 3600.0
    """How long a piece of a body is kept that no entry refers to: far longer than from its putting to its entry."""

    deliveries_max: int = 512
    """Webhooks one dispatcher has open at once, over all agents."""
    due_hold_seconds: float = 5.0
    due_poll_seconds: float = 0.5
    webhook_response_bytes_max: int = 4096

    def __repr__(self) -> str:
        # Keys and the passwords in addresses must not reach a log through a formatted struct.
        return f"Settings(mode={self.mode!r})"

    @property
    def unacknowledged_lease_seconds(self) -> float:
        return max(45.0, 1.5 * self.delivery_seconds)
