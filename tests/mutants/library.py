"""Breaks of the library for agents."""

from tests.mutants.mutant import Mutant

_SETTLING = "sdk/src/stepwell/settling.py"
_CONTEXT = "sdk/src/stepwell/context.py"
_COMPARING = "sdk/src/stepwell/testing/comparing.py"
_OF_SETTLING = "tests/sdk/test_sdk_settling.py::"
_OF_TESTING = "tests/sdk/test_sdk_testing.py::"
_OF_PARTS = "tests/sdk/test_sdk_llm_parts.py::"
_OF_CALLS = "tests/sdk/test_sdk_llm_calls.py::"
_OF_STREAMS = "tests/sdk/test_sdk_llm_streams.py::"

OF_THE_LIBRARY = (
    Mutant(
        name="an outcome that is under way does not ride again",
        promise="D8",
        file=_SETTLING,
        old="outcomes = tuple(self._unacknowledged.values())",
        new="outcomes = tuple(each for key, each in self._unacknowledged.items() if key not in self._rides)",
        tests=(_OF_SETTLING + "test_a22_until_it_is_acknowledged_it_rides_on_every_request",),
    ),
    Mutant(
        name="an outcome lingers for a minute",
        promise="D8",
        file=_SETTLING,
        old="LINGER_SECONDS = 0.002",
        new="LINGER_SECONDS = 60.0",
        tests=(_OF_SETTLING + "test_a21_alone_it_goes_after_the_linger_though_this_loop_does_nothing",),
    ),
    Mutant(
        name="what a refused request carried is forgotten",
        promise="D8",
        file=_SETTLING,
        old="is_left = bool(self._unacknowledged) and not self._is_lingering",
        new="is_left = False",
        tests=(_OF_SETTLING + "test_a22_what_a_refused_request_carried_goes_on_its_own",),
    ),
    Mutant(
        name="a repeat has a key of its own",
        promise="D2",
        file="sdk/src/stepwell/exchange.py",
        old='headers["Idempotency-Key"] = call.key',
        new='headers["Idempotency-Key"] = call.key + str(random.random())',
        tests=("tests/sdk/test_sdk_exchange.py::test_a20_what_was_lost_or_refused_for_now_is_repeated_as_one_request",),
    ),
    Mutant(
        name="a pause is an Exception, which agents swallow",
        promise="D2",
        file="sdk/src/stepwell/errors.py",
        old="class Signal(BaseException):",
        new="class Signal(Exception):",
        tests=("tests/sdk/test_sdk_names.py::test_a1_signals_are_no_exceptions",),
    ),
    Mutant(
        name="a tool beside one that waits for a person is cut off",
        promise="D2",
        file="sdk/src/stepwell/shielding.py",
        old="if not is_paused():",
        new="if True:",
        tests=(_OF_TESTING + "test_a_tool_beside_one_that_waits_for_a_person_comes_to_its_end",),
    ),
    Mutant(
        name="a step that differs is not noticed",
        promise="G5",
        file=_COMPARING,
        old="known[len(done)].content != step.content",
        new="False",
        tests=(_OF_TESTING + "test_a_step_that_differs_when_the_handler_runs_again_is_named_by_its_line",),
    ),
    Mutant(
        name="a step that is left out is not noticed",
        promise="G5",
        file=_COMPARING,
        old="            if len(done) < len(known):\n",
        new="            if False:\n",
        tests=(_OF_TESTING + "test_a_step_that_is_left_out_when_the_handler_runs_again_is_named_by_its_line",),
    ),
    Mutant(
        name="a recording lets bodies run",
        promise="G1",
        file="sdk/src/stepwell/testing/recording.py",
        old="idempotency=idempotency, run=refused, kind=kind",
        new="idempotency=idempotency, run=run, kind=kind",
        tests=(_OF_TESTING + "test_an_execution_becomes_a_test_that_a_changed_handler_fails",),
    ),
    Mutant(
        name="a stream that stops is a whole one",
        promise="G1",
        file="sdk/src/stepwell/llm/endings.py",
        old='return "the stream ended before its end"',
        new='return ""',
        tests=(_OF_PARTS + "test_a_chat_needs_no_done_and_done_alone_ends_nothing",),
    ),
    Mutant(
        name="a provider's package tries again by itself",
        promise="G1",
        file="sdk/src/stepwell/llm/records.py",
        old='({"content-type": self.content_type} if self.content_type else {}) | SHOULD_RETRY',
        new='{"content-type": self.content_type}',
        tests=(_OF_CALLS + "test_a27_an_error_that_remains_is_recorded_and_replays_equal",),
    ),
    Mutant(
        name="the end of a handler does not wait for a stream that is read on",
        promise="G1",
        file=_CONTEXT,
        old="        await self._calls.ended()\n",
        new="",
        tests=(_OF_STREAMS + "test_a30_a_consumer_that_leaves_cuts_nothing_and_the_end_of_the_handler_waits",),
    ),
    Mutant(
        name="the last deltas of a stream are shown when nobody can see them any more",
        promise="D5",
        file="sdk/src/stepwell/llm/reading.py",
        old="            await deltas.shown()\n",
        new="",
        tests=(_OF_STREAMS + "test_a29_observers_see_the_whole_stream_and_replays_publish_nothing",),
    ),
    Mutant(
        name="the boundary of a body in parts makes another step of it",
        promise="G5",
        file="sdk/src/stepwell/llm/calls.py",
        old="[described for described, _ in parts]",
        new="[*(described for described, _ in parts), kind.get_boundary()]",
        tests=(_OF_PARTS + "test_a_multipart_body_is_its_parts_whatever_the_boundary",),
    ),
)
