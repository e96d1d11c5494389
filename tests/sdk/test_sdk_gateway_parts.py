"""What a gateway is made of: tokens, counts, settings, paths and headers, and the end of a stream that waits."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kernel import cli
from kernel.domain.delegation import Delegation, mint
from schemas.entries import Lease as KernelLease
from stepwell import Lease, LeaseSuperseded
from stepwell.gateway import Upstream
from stepwell.gateway.__main__ import main
from stepwell.gateway.callers import Caller, caller_of
from stepwell.gateway.ordinals import KINDS_MAX, Kind, Ordinals
from stepwell.gateway.settings import settings_of
from stepwell.gateway.upstreams import Unreachable, forwarded, handed_back, upstream_of
from stepwell.llm.reading import Reading
from stepwell.llm.records import Answer, answer_of
from stepwell.llm.step import LlmStep
from stepwell.signing import delegation
from stepwell.types import StepDecision
from tests.support.wait import loop_turns
from tests.support.wire_provider import events

EXECUTION = "0199aaaa-0000-7000-8000-00000000aaaa"
LEASE = Lease("0199aaaa-0000-7000-8000-0000000000ff", 3)
CALLER = Caller("agent-1", EXECUTION, LEASE, "token")
NAMED = {
    "rebuno-agent-id": "agent-1",
    "rebuno-execution-id": EXECUTION,
    "rebuno-dispatch-id": LEASE.dispatch_id,
    "rebuno-dispatch-attempt": "3",
}


def token(**changes: Any) -> str:
    fields: dict[str, Any] = {"agent_id": "agent-1", "execution_id": EXECUTION, "lease": LEASE, "expires_at": 9}
    return delegation("a secret", **(fields | changes))


# ---------------------------------------------------------------- tokens


def test_the_library_mints_what_the_kernel_mints() -> None:
    lease = KernelLease(dispatch_id=LEASE.dispatch_id, attempt=LEASE.attempt)
    said = Delegation(agent_id="agent-1", execution_id=EXECUTION, lease=lease, expires_at=9)

    assert token() == mint(b"a secret", said)


def test_a_token_says_who_calls() -> None:
    assert caller_of(token(), {}) == Caller("agent-1", EXECUTION, LEASE, token())
    assert caller_of(token(), NAMED) is not None


@pytest.mark.parametrize(
    "spoiled",
    [
        *("", ".", "x", "a.b", token()[:-1], token() + "0", token().replace(".", ""), " " + token(), token() + "\n"),
        *(token(agent_id=each) for each in ("", "a b", "a\r\nHost: x", "é", "x" * 129)),
        *(token(execution_id=each) for each in ("", "../x", EXECUTION.upper())),
        *(token(lease=Lease(LEASE.dispatch_id, each)) for each in (0, -1)),
        token(expires_at="soon"),
        "A" * 2000 + "." + "0" * 64,
    ],
)
def test_what_is_no_token_names_nobody(spoiled: str) -> None:
    assert caller_of(spoiled, {}) is None


@pytest.mark.parametrize("name", NAMED)
def test_a_header_that_names_somebody_else_makes_it_none(name: str) -> None:
    assert caller_of(token(), NAMED | {name: "another"}) is None


# ---------------------------------------------------------------- counts


def test_new_calls_are_counted_and_a_repeat_is_the_latest() -> None:
    ordinals, kind = Ordinals(), Kind.of(CALLER, "POST /v1/a", b"{}", "")

    assert [ordinals.take(kind) for _ in range(3)] == [0, 1, 2]
    assert [ordinals.last(kind) for _ in range(2)] == [2, 2]
    assert ordinals.take(kind) == 3


def test_a_repeat_of_what_nobody_remembers_is_the_first_and_counts() -> None:
    ordinals, kind = Ordinals(), Kind.of(CALLER, "POST /v1/a", b"{}", "")

    assert ordinals.last(kind) == 0
    assert ordinals.take(kind) == 1


def test_calls_of_another_path_body_attempt_or_key_are_of_another_kind() -> None:
    later = Caller("agent-1", EXECUTION, Lease(LEASE.dispatch_id, 4), "token")
    kinds = {
        Kind.of(CALLER, "POST /v1/a", b"{}", ""),
        Kind.of(CALLER, "POST /v1/b", b"{}", ""),
        Kind.of(CALLER, "POST /v1/a", b"{ }", ""),
        Kind.of(later, "POST /v1/a", b"{}", ""),
        Kind.of(CALLER, "POST /v1/a", b"{}", "a key"),
    }

    assert len(kinds) == 5
    keys = [kind.key(0) for kind in kinds]
    assert len(set(keys)) == 5
    assert all(len(key) <= 255 and key.isascii() and key.isprintable() for key in keys)


def test_the_oldest_kinds_are_forgotten() -> None:
    ordinals = Ordinals()
    first = Kind("first")
    ordinals.take(first)
    for number in range(KINDS_MAX):
        ordinals.take(Kind(number))

    assert ordinals.take(first) == 0


# ---------------------------------------------------------------- settings


def test_without_a_file_the_two_providers_are_known(tmp_path: Path) -> None:
    settings = settings_of({"REBUNO_URL": "http://kernel", "REBUNO_API_KEY": "k"}, None)

    assert (settings.base_url, settings.api_key) == ("http://kernel", "k")
    assert sorted(settings.upstreams) == ["anthropic", "openai"]


def test_a_file_adds_providers_and_replaces_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        "scrub = ['^${x}', 'card [0-9]+']\n"
        '[upstreams.openai]\nurl = "https://eu.api.openai.com"\npaths = ["/v1"]\nkey = "${OPENAI_KEY}"\n'
        '[upstreams.local]\nurl = "http://127.0.0.1:9/base"\nheaders = {"X-Team" = "blue"}\n'
    )

    settings = settings_of({"OPENAI_KEY": "sk-1"}, file)

    upstreams = settings.upstreams
    assert settings.scrub is not None
    assert settings.scrub("card 17, card 4") == "[scrubbed], [scrubbed]"
    assert sorted(upstreams) == ["anthropic", "local", "openai"]
    assert upstreams["openai"].key == "sk-1"
    assert upstreams["local"].headers == {"X-Team": "blue"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "Expected"),
        ("[upstream.x]\n", "unknown field `upstream`"),
        ('[upstreams.x]\nurl = "https://x"\nsecret = "s"\n', "unknown field `secret`"),
        ("[upstreams.x]\n", "missing required field `url`"),
        ('[upstreams.x]\nurl = "x"\n', "upstreams.x: url: 'x' is no address"),
        ('[upstreams.v1]\nurl = "https://x"\n', "upstreams.v1: a name is"),
        ('[upstreams.X]\nurl = "https://x"\n', "upstreams.X: a name is"),
        ('[upstreams.x]\nurl = "https://x"\npaths = ["v1"]\n', "upstreams.x: paths"),
        ('[upstreams.x]\nurl = "https://x"\nkey_header = "a b"\n', "upstreams.x: key_header"),
        ('[upstreams.x]\nurl = "https://x"\nheaders = {"a b" = "c"}\n', "upstreams.x: key_header, headers"),
        ('[upstreams.x]\nurl = "https://x"\nidle_seconds = 0\n', "upstreams.x: idle_seconds"),
        ('[upstreams.x]\nurl = "https://x"\nkey = "${MISSING}"\n', "${MISSING} is not set"),
        ('scrub = ["("]\n', "'(' is no regular expression"),
        ('scrub = ["a*"]\n', "'a*' finds the empty text"),
        ('scrub = "a"\n', "Expected `array`"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start_and_says_why(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)

    assert main(["--config", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"stepwell gateway: {file}: ")
    assert reason in told


def test_a_file_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "none.toml")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_kernels_command_line_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["gateway", "--help"])
    assert ended.value.code == 0
    assert "usage: stepwell gateway" in capsys.readouterr().out


def test_the_kernels_command_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kernel.cli.metadata.entry_points", lambda **_: ())
    assert cli.main(["gateway"]) == 2
    assert "pip install stepwell" in capsys.readouterr().err


# ---------------------------------------------------------------- paths and headers

UPSTREAMS = {
    "openai": Upstream(url="https://openai", paths=("/v1",)),
    "anthropic": Upstream(url="https://anthropic", paths=("/v1/messages", "/v1/complete")),
    "local": Upstream(url="http://local"),
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", ("openai", "/v1/chat/completions")),
        ("/v1/messages", ("anthropic", "/v1/messages")),
        ("/v1/messages/count_tokens", ("anthropic", "/v1/messages/count_tokens")),
        ("/v1/messagesx", ("openai", "/v1/messagesx")),
        ("/openai/v1/messages", ("openai", "/v1/messages")),
        ("/local/v1/x%2Fy", ("local", "/v1/x%2Fy")),
        ("/local/", ("local", "/")),
        *((path, None) for path in ("/", "/local", "/other", "/v2/x", "/v1/../x", "/local/../../x", "")),
    ],
)
def test_a_path_leads_to_a_provider(path: str, expected: tuple[str, str] | None) -> None:
    found = upstream_of(UPSTREAMS, path)

    assert found == (None if expected is None else (UPSTREAMS[expected[0]], expected[1]))


def test_a_provider_gets_what_the_caller_sent_but_for_what_is_ours_or_the_hops() -> None:
    sent = {
        "host": "gateway",
        "content-type": "application/json",
        "content-length": "2",
        "connection": "keep-alive, x-of-the-hop",
        "x-of-the-hop": "1",
        "accept-encoding": "br",
        "authorization": "Bearer of-the-caller",
        "rebuno-delegation": "t",
        "x-stainless-retry-count": "0",
    }

    assert forwarded(sent, Upstream(url="https://x")) == {
        "content-type": "application/json",
        "authorization": "Bearer of-the-caller",
        "x-stainless-retry-count": "0",
        "accept-encoding": "gzip, deflate",
    }
    own = forwarded(sent | {"x-api-key": "of-the-caller"}, Upstream(url="https://x", key="k", key_header="X-Api-Key"))
    assert (own.get("authorization"), own["x-api-key"]) == (None, "k")


def test_an_answer_keeps_its_headers_but_for_the_hops() -> None:
    headers = {"Content-Type": "a/b", "Content-Encoding": "gzip", "Transfer-Encoding": "chunked", "X-Id": "1"}

    assert handed_back(headers) == {"content-type": "a/b", "x-id": "1"}


# ---------------------------------------------------------------- the end of a stream


class Attempt:
    """An attempt whose record is made when the test says so, and how it says."""

    def __init__(self) -> None:
        self.keeper = self
        self.may_record = asyncio.Event()
        self.refuses: BaseException | None = None
        self.records: list[Answer] = []

    def begin(self, work: Any) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(work)

    def call_soon(self, act: Any) -> None:
        act()

    async def begin_llm(self, target: str, args: Any) -> StepDecision:
        return StepDecision(decision="proceed", step_id="s")

    async def record_llm(self, step_id: str, record: dict[str, Any]) -> None:
        await self.may_record.wait()
        if self.refuses is not None:
            raise self.refuses
        self.records.append(answer_of(record))

    async def fail_llm(self, step_id: str, message: str) -> None: ...

    async def publish_delta(self, step_id: str, seq: int, data: str) -> None: ...


PIECES = [
    events('{"choices": [{"delta": {"content": "hi"}, "finish_reason": null}]}'),
    events('{"choices": [{"delta": {}, "finish_reason": "stop"}]}'),
    events("[DONE]"),
]


async def _chunks() -> AsyncIterator[bytes]:
    for each in PIECES:
        yield each


async def _closed() -> None: ...


async def _consumed(reading: Reading, into: list[bytes]) -> None:
    async for chunk in reading.consume():
        into.append(chunk)


async def test_a_strict_stream_gives_its_end_only_once_it_is_recorded() -> None:
    attempt, got = Attempt(), list[bytes]()
    reading = Reading(LlmStep(attempt, "s"), 200, "text/event-stream", is_strict=True)
    task = reading.start(_chunks(), _closed, Unreachable)
    consuming = asyncio.ensure_future(_consumed(reading, got))
    await loop_turns(50)

    assert got == PIECES[:1]
    attempt.may_record.set()
    await asyncio.gather(task, consuming)

    assert got == PIECES
    assert [each.body for each in attempt.records] == [b"".join(PIECES)]


async def test_a_strict_stream_that_cannot_be_recorded_breaks_off() -> None:
    attempt, got = Attempt(), list[bytes]()
    attempt.refuses = LeaseSuperseded("another has it")
    attempt.may_record.set()
    reading = Reading(LlmStep(attempt, "s"), 200, "text/event-stream", is_strict=True)
    task = reading.start(_chunks(), _closed, Unreachable)

    with pytest.raises(Unreachable, match="could not be recorded"):
        await _consumed(reading, got)
    await task

    assert got == PIECES[:1]


async def test_a_reading_that_is_cut_off_breaks_for_its_consumers_and_leaves_its_step_open() -> None:
    attempt, got = Attempt(), list[bytes]()
    is_closed = asyncio.Event()

    async def closed() -> None:
        is_closed.set()

    reading = Reading(LlmStep(attempt, "s"), 200, "text/event-stream", is_strict=True)
    task = reading.start(_chunks(), closed, Unreachable)
    consuming = asyncio.ensure_future(_consumed(reading, got))
    await loop_turns(50)
    task.cancel()

    with pytest.raises(Unreachable, match="cut off"):
        await consuming
    assert (got, is_closed.is_set(), attempt.records) == (PIECES[:1], True, [])


async def test_two_consumers_of_a_stream_get_all_of_it() -> None:
    attempt, one, two = Attempt(), list[bytes](), list[bytes]()
    reading = Reading(LlmStep(attempt, "s"), 200, "text/event-stream", is_strict=True)
    task = reading.start(_chunks(), _closed, Unreachable)
    consuming = [asyncio.ensure_future(_consumed(reading, each)) for each in (one, two)]
    await loop_turns(50)
    attempt.may_record.set()
    await asyncio.gather(task, *consuming)

    assert one == two == PIECES
