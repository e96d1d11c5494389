"""When a stream counts as silent: only while publishes wait for the sign that it stores what it is sent."""

import pytest

from kernel.log.silence import LogSilent, Said, Silences, Watched
from kernel.ports import Acknowledged, Rejected

STREAM = 3
NEW = Acknowledged(seq=5, is_duplicate=False)


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.silences = Silences(seconds=5.0, probe_seconds=1.0, clock=lambda: self.now)
        self.heard: list[Said] = []

    def publish(self) -> Watched:
        watched = self.silences.watch(STREAM, self.heard.append)
        self.silences.sent(watched)
        return watched

    @property
    def is_silent(self) -> bool:
        return self.silences.is_silent(STREAM)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_stream_is_silent_when_a_publish_has_waited_too_long(bench: Bench) -> None:
    assert not bench.is_silent
    bench.publish()
    bench.now += 4.9
    assert not bench.is_silent
    bench.now += 0.1
    assert bench.is_silent
    assert not bench.silences.is_silent(STREAM + 1)


def test_later_publishes_do_not_put_the_silence_off(bench: Bench) -> None:
    for _ in range(6):
        bench.publish()
        bench.now += 1.0
    assert bench.is_silent


def test_any_new_acknowledgement_ends_the_waiting_of_all(bench: Bench) -> None:
    bench.publish()
    bench.now += 4.0
    bench.publish()(NEW)
    bench.now += 4.0
    assert not bench.is_silent
    assert bench.heard == [NEW]


def test_what_is_read_back_from_the_log_ends_the_waiting_though_its_acknowledgement_is_lost(bench: Bench) -> None:
    bench.publish()
    sent_at = bench.now
    bench.now += 6.0
    bench.silences.note_stored(STREAM, sent_at=sent_at - 0.1)
    assert bench.is_silent, "what was sent before the silence says nothing about it"
    bench.silences.note_stored(STREAM + 1, sent_at=bench.now)
    assert bench.is_silent

    bench.silences.note_stored(STREAM, sent_at=sent_at)

    assert not bench.is_silent


def test_into_a_silent_stream_one_publish_a_period_is_let_through(bench: Bench) -> None:
    bench.publish()
    bench.now += 5.0
    probe = bench.publish()
    for _ in range(9):
        bench.now += 0.1
        with pytest.raises(LogSilent):
            bench.silences.watch(STREAM, bench.heard.append)
    bench.now += 0.2
    bench.publish()
    probe(NEW)
    assert not bench.is_silent
    bench.publish()


def test_what_was_not_sent_is_not_waited_for(bench: Bench) -> None:
    bench.silences.watch(STREAM, bench.heard.append)
    bench.now += 10.0
    assert not bench.is_silent


def test_a_refusal_ends_only_the_waiting_of_its_own_publish(bench: Bench) -> None:
    refused = Rejected(reason="full", is_full=True)
    first = bench.publish()
    bench.publish()(refused)
    bench.now += 5.0
    assert bench.is_silent
    first(refused)
    assert not bench.is_silent


def test_an_old_entry_that_is_known_by_its_id_proves_no_write(bench: Bench) -> None:
    bench.publish()(NEW)
    bench.publish()
    bench.publish()(Acknowledged(seq=5, is_duplicate=True))
    bench.now += 5.0
    assert bench.is_silent


def test_a_duplicate_of_what_was_stored_since_does(bench: Bench) -> None:
    bench.publish()(NEW)
    bench.publish()
    bench.now += 5.0
    bench.publish()(Acknowledged(seq=6, is_duplicate=True))
    assert not bench.is_silent


def test_a_new_connection_starts_without_blame(bench: Bench) -> None:
    bench.publish()
    bench.now += 5.0
    bench.silences.forget()
    assert not bench.is_silent
    bench.publish()
