"""Breaks of the door: what is answered when, and to whom."""

from tests.mutants.mutant import Mutant

_PIPELINE = "kernel/door/pipeline.py"
_FRESHNESS = "kernel/door/freshness.py"
_AUTH = "kernel/door/auth.py"

_OF_PIPELINE = "tests/unit/test_door_pipeline.py::"
_OF_FRESHNESS = "tests/unit/test_door_freshness.py::"
_OF_AUTH = "tests/integration/test_door_auth.py::"

_GATE = "kernel/door/gate.py"
_SILENT = '(_silence_of((shard,)) if self._log.is_silent(shard) else "")'

_NOT_ANSWERED = 'raise OutcomeUnknown("sent to the log and not answered in time")'

OF_THE_DOOR = (
    Mutant(
        name="a door that cannot answer a heartbeat says that it lives",
        promise="D6",
        file="kernel/door/presence.py",
        old="        if self._control.is_level:\n            await self._view.beat",
        new="        if True:\n            await self._view.beat",
        tests=("tests/unit/test_door_presence.py::test_a_door_that_may_not_decide_does_not_say_that_it_lives",),
    ),
    Mutant(
        name="entries are sent under a clock that is an hour off",
        promise="D2",
        file=_GATE,
        old="if skew <= self._skew_seconds_max:",
        new="if True:",
        tests=(_OF_PIPELINE + "test_under_a_clock_that_is_off_nothing_is_sent_and_the_refusal_comes_at_once",),
    ),
    Mutant(
        name="a request waits for a log that acknowledges nothing",
        promise="G9",
        file=_GATE,
        old=_SILENT,
        new='""',
        tests=(
            _OF_PIPELINE + "test_into_a_log_that_acknowledges_nothing_no_more_is_sent_until_a_probe_is_acknowledged",
        ),
    ),
    Mutant(
        name="nobody probes a log that acknowledges nothing",
        promise="G9",
        file="kernel/door/presence.py",
        old="self._probes.send()",
        new="pass",
        tests=(
            "tests/integration/test_door_operations.py::"
            "test_a_door_whose_log_acknowledges_nothing_says_what_to_do_and_is_well_again_by_itself",
        ),
    ),
    Mutant(
        name="the door answers when it has sent, before the acknowledgement",
        promise="G8",
        file=_PIPELINE,
        old="raw = await wait.next(self._poll_seconds if wait.is_out else PUBLISH_PAUSE_SECONDS)",
        new='raw = b"\\x92\\xa4done\\xc2"',
        tests=(_OF_PIPELINE + "test_an_entry_that_was_sent_and_never_answered_has_an_unknown_outcome",),
    ),
    Mutant(
        name="the door answers at the acknowledgement, before the fold",
        promise="D4",
        file=_PIPELINE,
        old="wait.acknowledged = spoken.seq",
        new='wait.acknowledged = spoken.seq\n        wait.answer(b"\\x92\\xa4done\\xc2")',
        tests=(_OF_PIPELINE + "test_an_entry_that_was_sent_and_never_answered_has_an_unknown_outcome",),
    ),
    Mutant(
        name="503 is answered where 504 is due: an unknown outcome is called unavailable",
        promise="G9",
        file=_PIPELINE,
        old=_NOT_ANSWERED,
        new=_NOT_ANSWERED.replace("OutcomeUnknown", "LogUnavailable"),
        tests=(_OF_PIPELINE + "test_an_entry_that_was_sent_and_never_answered_has_an_unknown_outcome",),
    ),
    Mutant(
        name="503 is answered where the decision is made and its record cannot be read",
        promise="G9",
        file="kernel/door/appending.py",
        old='raise OutcomeUnknown(f"decided, and not answered in time: {error}") from error',
        new="raise",
        tests=(
            "tests/unit/test_door_after_the_decision.py::"
            "test_a_create_whose_record_cannot_be_read_is_not_refused_as_undone",
        ),
    ),
    Mutant(
        name="a refusal makes the publish before it count for nothing",
        promise="G9",
        file=_PIPELINE,
        old="return self.acknowledged is not None or self.open_sends > 0",
        new="return self.acknowledged is not None or (self.open_sends > 0 and not self.is_full)",
        tests=(_OF_PIPELINE + "test_a_refusal_after_a_publish_that_may_be_in_the_log_proves_nothing",),
    ),
    Mutant(
        name="an entry is published when the fold would take it for late",
        promise="G9",
        file=_PIPELINE,
        old="        if now >= wait.give_up_at:\n",
        new="        if now >= wait.deadline:\n",
        tests=("tests/unit/test_door_giving_up.py::test_a_log_that_comes_back_too_late_is_not_sent_the_entry",),
    ),
    Mutant(
        name="an entry is published once and never again",
        promise="D2",
        file=_PIPELINE,
        old="if is_silent and wait.is_out and now < wait.give_up_at:",
        new="if False:",
        tests=(_OF_PIPELINE + "test_an_entry_is_published_again_with_its_id_until_acknowledged",),
    ),
    Mutant(
        name="an unknown outcome has the status of a refusal",
        promise="G9",
        file="kernel/door/refusals.py",
        old='_envelope(504, "outcome_unknown"',
        new='_envelope(503, "outcome_unknown"',
        tests=("tests/unit/test_door_refusals.py::test_an_error_is_answered_in_the_words_of_the_contract",),
    ),
    Mutant(
        name="a view that is being rebuilt is believed",
        promise="D5",
        file=_FRESHNESS,
        old="if seen.is_rebuilding or seen.watermark_seq < 0:",
        new="if False:",
        tests=(_OF_FRESHNESS + "test_what_is_not_fresh_by_the_deadline_is_refused_with_its_reason",),
    ),
    Mutant(
        name="a view below the floor is believed",
        promise="D5",
        file=_FRESHNESS,
        old="if seen.watermark_seq < floor:",
        new="if False:",
        tests=(_OF_FRESHNESS + "test_what_was_seen_once_is_the_floor_of_every_later_read",),
    ),
    Mutant(
        name="a missing key is read as an unknown execution",
        promise="D5",
        file="kernel/door/records.py",
        old=(
            "            await self._auth.owner(request, execution_id, shard)\n"
            '            raise Unavailable("the record of this execution is damaged and being restored")'
        ),
        new='            raise NotFound("execution")',
        tests=(_OF_AUTH + "test_a_damaged_directory_is_no_unknown_execution",),
    ),
    Mutant(
        name="an agent of the same name in another tenant owns the execution",
        promise="G7",
        file=_AUTH,
        old="return caller.agent_id == located.agent_id and located.tenant in caller.tenants",
        new="return caller.agent_id == located.agent_id",
        tests=(_OF_AUTH + "test_an_agent_of_that_name_in_another_tenant_meets_the_answer_of_an_unknown_id",),
    ),
    Mutant(
        name="a foreign execution is forbidden instead of unknown",
        promise="G7",
        file=_AUTH,
        old="        if located is None or not _owns(request.caller, located):\n",
        new=(
            "        if located is not None and not _owns(request.caller, located):\n"
            "            raise Forbidden\n"
            "        if located is None:\n"
        ),
        tests=(_OF_AUTH + "test_another_agent_meets_the_answer_of_an_unknown_id",),
    ),
    Mutant(
        name="the window of a signature's timestamp is skipped",
        promise="G7",
        file=_AUTH,
        old="if is_v1 and not timestamp_ok(",
        new="if False and not timestamp_ok(",
        tests=(_OF_AUTH + "test_a_timestamp_may_be_five_minutes_off_either_way",),
    ),
    Mutant(
        name="an agent secret is stored in clear",
        promise="D7",
        file="kernel/control/sealing.py",
        old="ciphertext = self._cipher.encrypt(nonce, secret, _place(tenant, agent_id, field))",
        new="ciphertext = secret",
        tests=("tests/unit/test_control_sealing.py::test_nothing_of_the_secret_shows",),
    ),
)
