"""Breaks of live streams, of delegation, and of what an LLM call took."""

from tests.mutants.mutant import Mutant

_DELTAS = "kernel/door/deltas.py"
_STREAMS = "tests/integration/test_door_streams.py::"
_DELEGATION = "kernel/domain/delegation.py"
_OF_TOKENS = "tests/unit/test_delegation.py::"
_USAGE = "kernel/domain/usage.py"
_OF_COUNTS = "tests/unit/test_usage.py::"

OF_LLM_CALLS = (
    Mutant(
        name="any number of deltas waits for a slow observer",
        promise="G7",
        file=_DELTAS,
        old="len(self._queued) >= QUEUED_MAX or ",
        new="",
        tests=(_STREAMS + "test_a_slow_observer_sees_a_gap",),
    ),
    Mutant(
        name="deltas of a step that has ended are shown",
        promise="G4",
        file=_DELTAS,
        old='if decode_step(step).status == "executing":',
        new="if True:",
        tests=(_STREAMS + "test_a_delta_needs_no_lease_and_is_dropped_once_its_step_has_ended",),
    ),
    Mutant(
        name="a superseded attempt shows deltas",
        promise="G3",
        file=_DELTAS,
        old="if header.lease != lease:",
        new="if False:",
        tests=(_STREAMS + "test_a_delta_is_bounded_and_belongs_to_a_step_and_to_the_current_lease",),
    ),
    Mutant(
        name="a reader that comes back gets everything again",
        promise="D5",
        file="kernel/door/events.py",
        old="seen = request.headers.get(LAST_EVENT_ID)",
        new="seen = None",
        tests=(_STREAMS + "test_a_reader_that_comes_back_misses_and_repeats_nothing",),
    ),
    Mutant(
        name="a stream of deltas goes on with a key that was revoked meanwhile",
        promise="D7",
        file=_DELTAS,
        old="        self._records.check_again(request)\n",
        new="",
        tests=(_STREAMS + "test_a_stream_ends_with_the_key_that_it_was_asked_for_with",),
    ),
    Mutant(
        name="a stream of events goes on with a key that was revoked meanwhile",
        promise="D7",
        file="kernel/door/events.py",
        old="                self._records.check_again(request)\n                rendered = ",
        new="                rendered = ",
        tests=(_STREAMS + "test_a_stream_ends_with_the_key_that_it_was_asked_for_with",),
    ),
    Mutant(
        name="streams outlive the door that drains",
        promise="D4",
        file="kernel/door/app.py",
        old="        self._streams.close()\n",
        new="",
        tests=(_STREAMS + "test_a_door_that_closes_ends_its_streams_at_once_and_without_an_end",),
    ),
    Mutant(
        name="a reader that takes nothing is waited for",
        promise="G7",
        file="kernel/door/streams.py",
        old="async with asyncio.timeout(TAKE_SECONDS_MAX):",
        new="if True:",
        tests=(_STREAMS + "test_an_observer_that_takes_nothing_delays_nobody_and_is_disconnected",),
    ),
    Mutant(
        name="a connection that is dropped is offered what the system holds of it",
        promise="G7",
        file="kernel/listener.py",
        old="            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)",
        new="            pass",
        tests=(_STREAMS + "test_an_observer_that_takes_nothing_delays_nobody_and_is_disconnected",),
    ),
    Mutant(
        name="what nobody watches any more is still heard",
        promise="G7",
        file=_DELTAS,
        old="            if not audience.observers:\n",
        new="            if False:\n",
        tests=(_STREAMS + "test_five_hundred_observers_get_everything_and_leave_nothing_behind",),
    ),
    Mutant(
        name="a delegation never expires",
        promise="G3",
        file=_DELEGATION,
        old="-SKEW_SECONDS <= left_seconds <= ",
        new="left_seconds <= ",
        tests=(_OF_TOKENS + "test_a_token_has_its_time",),
    ),
    Mutant(
        name="a delegation may be minted for ever",
        promise="G3",
        file=_DELEGATION,
        old=" <= AHEAD_SECONDS_MAX + SKEW_SECONDS else None",
        new=" else None",
        tests=(_OF_TOKENS + "test_a_token_has_its_time",),
    ),
    Mutant(
        name="a delegation of another execution will do",
        promise="G7",
        file="kernel/door/auth.py",
        old="        parse_uuid(execution_id) == found.execution_id\n        and ",
        new="        ",
        tests=("tests/conformance/test_delegation.py::test_k126_a_token_that_says_anything_else_is_refused",),
    ),
    Mutant(
        name="a delegation of another attempt will do",
        promise="G3",
        file="kernel/door/auth.py",
        old='        and headers.get(ATTEMPT, b"").lstrip(b"0") == b"%d" % found.lease.attempt\n',
        new="",
        tests=("tests/conformance/test_delegation.py::test_k126_a_token_that_says_anything_else_is_refused",),
    ),
    Mutant(
        name="tokens of a cache are not counted as input",
        promise="D3",
        file=_USAGE,
        old='"prompt_tokens") + read_cached + cache_written',
        new='"prompt_tokens")',
        tests=(_OF_COUNTS + "test_a_whole_answer_says_what_it_took",),
    ),
    Mutant(
        name="a tool whose result looks like a record has used tokens",
        promise="D3",
        file="kernel/domain/fold/steps.py",
        old='if outcome.usage is not None or step.kind != "llm_call" or ',
        new="if outcome.usage is not None or ",
        tests=(
            "tests/unit/fold/test_fold_outcomes.py::test_usage_that_a_record_holds_counts_for_llm_calls_that_were_sent_none",
        ),
    ),
)
