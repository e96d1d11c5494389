"""Breaks of the gateway, and of what is kept out of records."""

from tests.mutants.mutant import Mutant

_APP = "sdk/src/stepwell/gateway/app.py"
_CALLERS = "sdk/src/stepwell/gateway/callers.py"
_CALLS = "sdk/src/stepwell/gateway/calls.py"
_ORDINALS = "sdk/src/stepwell/gateway/ordinals.py"
_UPSTREAMS = "sdk/src/stepwell/gateway/upstreams.py"
_STEP = "sdk/src/stepwell/llm/step.py"
_OF_IT = "tests/sdk/test_sdk_gateway.py::"
_OF_REFUSALS = "tests/sdk/test_sdk_gateway_refusals.py::"
_OF_ITS_PARTS = "tests/sdk/test_sdk_gateway_parts.py::"
_OF_KILLS = "tests/sdk/test_sdk_gateway_kills.py::"
_OF_SCRUBBING = "tests/sdk/test_sdk_llm_scrubbing.py::"

OF_THE_GATEWAY = (
    Mutant(
        name="the end of a stream is given before it is recorded",
        promise="D8",
        file="sdk/src/stepwell/llm/reading.py",
        old="is_held=self._is_strict and ending.is_finished",
        new="is_held=False",
        tests=(_OF_ITS_PARTS + "test_a_strict_stream_gives_its_end_only_once_it_is_recorded",),
    ),
    Mutant(
        name="a stream that could not be recorded ends well",
        promise="G1",
        file="sdk/src/stepwell/llm/reading.py",
        old="if lost is not None and self._is_strict:",
        new="if False:",
        tests=(_OF_ITS_PARTS + "test_a_strict_stream_that_cannot_be_recorded_breaks_off",),
    ),
    Mutant(
        name="an answer that could not be recorded is handed on",
        promise="G1",
        file=_CALLS,
        old="return response if lost is None else _instead(lost)",
        new="return response",
        tests=(_OF_IT + "test_a35_an_answer_that_cannot_be_recorded_is_not_handed_on",),
    ),
    Mutant(
        name="a stream that the gateway's own end cuts off ends well",
        promise="G1",
        file="sdk/src/stepwell/llm/reading.py",
        old='            self._broken = broken("the stream was cut off: the process ended")\n',
        new="",
        tests=(_OF_ITS_PARTS + "test_a_reading_that_is_cut_off_breaks_for_its_consumers_and_leaves_its_step_open",),
    ),
    Mutant(
        name="an answer is handed on though another one is in the record",
        promise="G1",
        file=_CALLS,
        old='if decision.decision == "replay":',
        new="if False:",
        tests=(_OF_IT + "test_a35_two_gateways_that_carry_out_one_call_hand_on_the_answer_that_is_recorded",),
    ),
    Mutant(
        name="what is no call is passed through without a look at the token",
        promise="D7",
        file=_APP,
        old="            await self._calls.is_good(request.caller)\n",
        new="            pass\n",
        tests=(_OF_REFUSALS + "test_a36_without_a_good_token_nobody_is_asked",),
    ),
    Mutant(
        name="headers may name another than the token",
        promise="D7",
        file=_CALLERS,
        old="if any(headers.get(name, value) != value for name, value in named.items()):",
        new="if False:",
        tests=(_OF_ITS_PARTS + "test_a_header_that_names_somebody_else_makes_it_none",),
    ),
    Mutant(
        name="a repeat asks the provider beside the call that is under way",
        promise="G1",
        file=_CALLS,
        old="if is_repeated else None\n        if found is None:",
        new="if False else None\n        if found is None:",
        tests=(_OF_IT + "test_a35_a_repeat_of_the_callers_client_joins_the_call_that_is_under_way",),
    ),
    Mutant(
        name="a repeat is a call of its own",
        promise="G1",
        file=_APP,
        old="int(count) > 0)",
        new="int(count) > 99)",
        tests=(_OF_KILLS + "test_a37_killed_before_the_provider_has_answered",),
    ),
    Mutant(
        name="a gateway that begins anew hands out what another call got",
        promise="D1",
        file=_CALLS,
        old="for key in self._keys if decision.is_repeat else ():",
        new="for key in ():",
        tests=(_OF_IT + "test_a35_another_gateway_goes_on_counting_where_the_first_one_stopped",),
    ),
    Mutant(
        name="calls of two attempts share their keys",
        promise="D1",
        file=_ORDINALS,
        old="str(lease.attempt), path, client_key",
        new="path, client_key",
        tests=(_OF_ITS_PARTS + "test_calls_of_another_path_body_attempt_or_key_are_of_another_kind",),
    ),
    Mutant(
        name="an outcome may be lost that a call through the gateway follows",
        promise="D8",
        file="sdk/src/stepwell/context.py",
        old="self.is_delegated = self._is_sync = True",
        new="self.is_delegated = True",
        tests=(_OF_IT + "test_a35_what_an_outcome_before_it_says_is_durable_before_a_call_is_decided",),
    ),
    Mutant(
        name="the token is sent to the provider",
        promise="D7",
        file=_UPSTREAMS,
        old="not name.startswith(_OF_OURS)",
        new="True",
        tests=(_OF_ITS_PARTS + "test_a_provider_gets_what_the_caller_sent_but_for_what_is_ours_or_the_hops",),
    ),
    Mutant(
        name="the caller's key goes along with the gateway's own",
        promise="D7",
        file=_UPSTREAMS,
        old="            found.pop(name, None)\n",
        new="            pass\n",
        tests=(_OF_ITS_PARTS + "test_a_provider_gets_what_the_caller_sent_but_for_what_is_ours_or_the_hops",),
    ),
    Mutant(
        name="answers are recorded as they came though something is to be scrubbed",
        promise="D7",
        file=_STEP,
        old='record["body"] = self._scrub(record["body"])',
        new="pass",
        tests=(_OF_SCRUBBING + "test_it_is_asked_and_answered_whole_and_recorded_without",),
    ),
    Mutant(
        name="requests are recorded as they came though something is to be scrubbed",
        promise="D7",
        file=_STEP,
        old="call.args if scrub is None else scrubbed(call.args, scrub)",
        new="call.args",
        tests=(_OF_SCRUBBING + "test_it_is_asked_and_answered_whole_and_recorded_without",),
    ),
    Mutant(
        name="pieces of a stream are shown though something is to be scrubbed",
        promise="D7",
        file=_STEP,
        old="is_shown=self._scrub is None",
        new="is_shown=True",
        tests=(_OF_SCRUBBING + "test_a_stream_that_is_scrubbed_is_not_shown_live",),
    ),
)
