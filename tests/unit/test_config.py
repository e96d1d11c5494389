"""Settings: a flag beats the environment, that beats the default, and a mistake stops the start by name."""

from ipaddress import ip_network

import pytest

from kernel.config import Loaded, load_settings, require, require_key
from kernel.domain.errors import Misconfigured
from kernel.settings import Settings

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def _loaded(**environment: str) -> Loaded:
    return load_settings("server", {f"STEPWELL_{name}": value for name, value in environment.items()}, {})


def test_nothing_given_is_every_default() -> None:
    assert load_settings("server", {"PATH": "/bin"}, {}) == Loaded(settings=Settings(), warnings=())


def test_a_flag_beats_the_environment_and_that_beats_the_default() -> None:
    environment = {"STEPWELL_SHARDS": "4"}

    assert load_settings("server", environment, {}).settings.shards == 4
    assert load_settings("server", environment, {"--shards": "2"}).settings.shards == 2


def test_an_empty_variable_counts_as_absent() -> None:
    assert _loaded(SHARDS="", API_KEY="") == Loaded(settings=Settings(), warnings=())


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        (
            "NATS_URL",
            "nats://user:word@one:4222,nats://two:4222",
            "nats_url",
            "nats://user:word@one:4222,nats://two:4222",
        ),
        ("REDIS_URL", "rediss://:word@host:6379/1", "redis_url", "rediss://:word@host:6379/1"),
        ("MASTER_KEY", "sixteen bytes ok", "master_key", "sixteen bytes ok"),
        ("API_KEY", "key-1", "api_key", "key-1"),
        ("OPERATOR_KEY", "key-2", "operator_key", "key-2"),
        ("LOG_LEVEL", "debug", "log_level", "debug"),
        ("DISPATCH_MAX_ATTEMPTS", "7", "attempts_max", 7),
        ("DISPATCH_LEASE_TIMEOUT", "10s", "lease_seconds", 10.0),
        ("DISPATCH_TIMEOUT", "1500ms", "delivery_seconds", 1.5),
        ("DISPATCH_BASE_DELAY", "0.5", "base_delay_seconds", 0.5),
        ("DISPATCH_MAX_DELAY", "1m", "delay_seconds_max", 60.0),
        ("DISPATCH_UNREACHABLE", "0", "unreachable_seconds", 0.0),
        ("DEADLINE_TIMEOUT", "1h30m", "deadline_seconds", 5400.0),
        ("DEADLINE_TIMEOUT", "off", "deadline_seconds", None),
        ("MAX_LIFE", "24h", "life_seconds", 86400.0),
        ("APPROVAL_TIMEOUT", "1h30m", "approval_timeout_seconds", 5400.0),
        ("SIGNATURE_WINDOW", "2m", "signature_window_seconds", 120),
        ("PUBLIC_PREFIXES", "/stepwell, /a/b", "public_prefixes", ("/stepwell", "/a/b")),
        (
            "WEBHOOK_ALLOW_NETWORKS",
            "10.0.0.0/8, fd00::/8",
            "webhook_allow_networks",
            (ip_network("10.0.0.0/8"), ip_network("fd00::/8")),
        ),
        ("REQUEST_BUDGET", "30s", "budget_seconds", 30.0),
        ("DRAIN_TIMEOUT", "0", "drain_seconds", 0.0),
        ("MAX_BODY_BYTES", "2048", "body_bytes_max", 2048),
    ],
)
def test_each_setting_goes_where_it_belongs(name: str, text: str, field: str, value: object) -> None:
    assert getattr(_loaded(**{name: text}).settings, field) == value


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":9000", "0.0.0.0", 9000),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("kernel.example:80", "kernel.example", 80),
        ("[::1]:8080", "::1", 8080),
    ],
)
def test_a_listen_address_names_host_and_port(text: str, host: str, port: int) -> None:
    settings = _loaded(LISTEN_ADDR=text).settings

    assert (settings.listen_host, settings.listen_port) == (host, port)


def test_the_port_flag_changes_the_port_alone() -> None:
    loaded = load_settings("server", {"STEPWELL_LISTEN_ADDR": "127.0.0.1:1"}, {"--port": "9000"})

    assert (loaded.settings.listen_host, loaded.settings.listen_port) == ("127.0.0.1", 9000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[
            ("LISTEN_ADDR", text)
            for text in ("8080", "host", "::1:80", "[::1:80", "[x]:80", "a b:80", ":65536", ":", ":-1")
        ],
        *[("SHARDS", text) for text in ("0", "257", "-1", "8.0", "eight", "٨", " 8")],
        *[("DISPATCH_LEASE_TIMEOUT", text) for text in ("9999ms", "25h", "fast", "10 s")],
        *[("LOG_LEVEL", text) for text in ("INFO", "verbose")],
        *[("DEADLINE_TIMEOUT", text) for text in ("0", "never")],
        *[("SIGNATURE_WINDOW", text) for text in ("0", "1500ms", "2h")],
        *[
            ("PUBLIC_PREFIXES", text)
            for text in ("a", "/", "/a/", "/a,", "/a?b", "/a#b", "/ä", "/a b", ",".join(["/a"] * 17))
        ],
        *[("WEBHOOK_ALLOW_NETWORKS", text) for text in ("10.0.0.1/8", "10.0.0.0/33", "host", "10.0.0.0/8,")],
        *[("REQUEST_BUDGET", text) for text in ("1s", "31s")],
        *[("DRAIN_TIMEOUT", text) for text in ("31s", "-1")],
        *[("MAX_BODY_BYTES", text) for text in ("33554433", "0", "1e6")],
        *[("APPROVAL_TIMEOUT", text) for text in ("soon", "0", "999ms", "8761h")],
        *[("RETENTION", "1d"), ("NO_POLICY", "perhaps")],
    ],
)
def test_a_setting_that_cannot_be_read_stops_the_start_by_name_and_value(name: str, text: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        _loaded(**{name: text})

    message = str(caught.value)
    assert message.startswith(f"STEPWELL_{name}={text} cannot be used: it takes ")
    assert "\n" not in message


def test_a_flag_that_cannot_be_read_is_named_as_a_flag() -> None:
    with pytest.raises(Misconfigured, match=r"^--port=http cannot be used: it takes a port number"):
        load_settings("dev", {}, {"--port": "http"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MASTER_KEY", "fifteen bytes.."),
        ("MASTER_KEY", "sixteen bytes \udcff."),
        ("API_KEY", "with space"),
        ("API_KEY", "schlüssel"),
        ("OPERATOR_KEY", "with space"),
        ("NATS_URL", "http://user:word@host"),
        ("REDIS_URL", "user:word@host"),
    ],
)
def test_a_secret_that_cannot_be_read_is_never_shown(name: str, text: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        _loaded(**{name: text})

    assert str(caught.value).startswith(f"STEPWELL_{name} cannot be used: it takes ")
    assert text not in str(caught.value)


def test_a_lease_below_45_seconds_warns() -> None:
    assert _loaded(DISPATCH_LEASE_TIMEOUT="45s").warnings == ()
    (warning,) = _loaded(DISPATCH_LEASE_TIMEOUT="44s").warnings
    assert warning.startswith("STEPWELL_DISPATCH_LEASE_TIMEOUT=44s is below 45s")


def test_what_is_not_built_yet_is_read_and_said_to_have_no_effect() -> None:
    assert _loaded(RETENTION="24h").warnings == ("STEPWELL_RETENTION has no effect yet",)


def test_a_mistyped_name_warns() -> None:
    assert _loaded(SHARD="4", NATS_STORE="/data", URL="http://x", TEST_SEED="1").warnings == (
        "STEPWELL_SHARD is no setting and is ignored",
    )


def test_dev_lets_webhooks_reach_this_machine() -> None:
    dev = load_settings("dev", {"STEPWELL_WEBHOOK_ALLOW_NETWORKS": "10.0.0.0/8"}, {}).settings

    assert dev.mode == "dev"
    assert dev.webhook_allow_networks == (*LOOPBACK, ip_network("10.0.0.0/8"))
    assert _loaded().settings.webhook_allow_networks == ()


def test_dev_uses_its_own_servers_and_says_so() -> None:
    loaded = load_settings("dev", {"STEPWELL_NATS_URL": "nats://host"}, {})

    assert loaded.settings.nats_url == ""
    assert loaded.warnings == ("STEPWELL_NATS_URL is ignored: `stepwell dev` starts its own servers",)


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(Misconfigured) as caught:
        require(Settings(), "storage", "master_key", "key")

    message = str(caught.value)
    for name in ("STEPWELL_NATS_URL", "STEPWELL_REDIS_URL", "STEPWELL_MASTER_KEY", "STEPWELL_API_KEY"):
        assert name in message


def test_only_what_a_role_needs_is_required() -> None:
    require(Settings())
    require(Settings(nats_url="n", redis_url="r", master_key="m"), "storage", "master_key")
    with pytest.raises(Misconfigured, match=r"^the start needs STEPWELL_REDIS_URL; set"):
        require(Settings(nats_url="n"), "storage")


def test_a_door_needs_a_key_that_somebody_holds() -> None:
    with pytest.raises(Misconfigured) as caught:
        require_key(Settings(), is_in_record=False)
    for name in ("STEPWELL_API_KEY", "STEPWELL_OPERATOR_KEY", "start again"):
        assert name in str(caught.value)

    require_key(Settings(), is_in_record=True)
    require_key(Settings(api_key="k"), is_in_record=False)
    require_key(Settings(operator_key="k"), is_in_record=False)
    require_key(Settings(mode="dev"), is_in_record=False)


def test_the_record_may_have_the_key_where_nothing_else_is_missing() -> None:
    require(Settings(nats_url="n", redis_url="r", master_key="m"), "storage", "master_key", "key")


def test_one_key_cannot_be_two_principals() -> None:
    with pytest.raises(Misconfigured, match="give each a key of its own") as caught:
        _loaded(API_KEY="one-and-the-same", OPERATOR_KEY="one-and-the-same")
    assert "one-and-the-same" not in str(caught.value)


def test_settings_never_show_a_secret() -> None:
    settings = Settings(
        master_key="the master key", api_key="the api key", operator_key="the other", nats_url="nats://a:word@b"
    )

    assert f"{settings}" == repr(settings) == "Settings(mode='server')"
