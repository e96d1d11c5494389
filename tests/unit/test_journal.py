"""The journal: one line an event, whatever is logged, and never a secret."""

import logging

import pytest

from kernel.journal import OneLine, secrets_of, set_up_logging
from kernel.settings import Settings


def _line(message: str, *arguments: object, secrets: tuple[str, ...] = (), error: Exception | None = None) -> str:
    exc_info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("kernel.a", logging.INFO, "a.py", 1, message, arguments, exc_info)
    record.created = 1_700_000_000.25
    record.msecs = 250.0
    return OneLine(secrets).format(record)


def test_a_line_names_time_level_place_and_event() -> None:
    assert _line("shard %d is mine", 3) == "2023-11-14T22:13:20.250Z INFO kernel.a shard 3 is mine"


def test_a_traceback_stays_on_the_line() -> None:
    line = _line("it\r\nbroke\u2028so", error=ValueError("first\nsecond"))

    assert len(line.splitlines()) == 1
    assert line.endswith("it | broke | so | ValueError: first | second")


def test_known_secrets_are_cut_out_wherever_they_come_from() -> None:
    error = ConnectionError("nats://user:pass-word@host refused")

    line = _line("key %s", "key-12345", secrets=("key-1", "key-12345", "pass-word"), error=error)

    assert "key-" not in line
    assert "pass-word" not in line
    assert "key *** | " in line


def test_logging_goes_to_standard_error_from_the_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers, root.level
    try:
        set_up_logging(Settings(log_level="warning", api_key="the api key"))
        logging.getLogger("kernel.a").info("not shown")
        logging.getLogger("kernel.a").warning("shown to the api key")
        logging.getLogger("nats").warning("shown too")
    finally:
        root.handlers = before
        root.setLevel(level)

    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("WARNING kernel.a shown to ***")
    assert second.endswith("WARNING nats shown too")


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("nats://host:4222", set()),
        ("nats://user:pass%20word@host", {"pass%20word", "pass word"}),
        ("nats://a-token@host", {"a-token"}),
        ("nats://u:first@one,nats://u:second@two", {"first", "second"}),
        ("nats://[half", {"nats://[half"}),
        ("nats://u:abc@host", set()),
    ],
)
def test_passwords_and_tokens_inside_addresses_are_secrets(url: str, secrets: set[str]) -> None:
    assert set(secrets_of(Settings(nats_url=url))) == secrets


def test_the_keys_and_the_password_of_redis_are_secrets() -> None:
    settings = Settings(master_key="the master key", api_key="the api key", redis_url="redis://:the-word@host")

    assert set(secrets_of(settings)) == {"the master key", "the api key", "the-word"}
