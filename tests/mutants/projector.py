"""Breaks of the projector: what it believes of the log and the view, and in which order it works."""

from tests.mutants.mutant import Mutant

_SHARD = "workers/projecting/shard.py"
_BATCH = "workers/projecting/batch.py"
_MEMORY = "workers/projecting/memory.py"

_OF_OWNER = "tests/unit/test_shard_owner.py::"
_OF_BATCH = "tests/unit/test_projecting_batch.py::"
_TRUST = "tests/integration/test_projector_trust.py::"
_REBUILD = "tests/integration/test_projector_rebuild.py::"

_MARKS = "workers/projecting/marks.py"
_OF_MARKS = "tests/integration/test_projector_marks.py::"

_APPLY = "await self._apply(self._batch_of(folded, watermark, log_bytes))"

OF_THE_PROJECTOR = (
    Mutant(
        name="a mark that could not be recorded waits for the next period",
        promise="D6",
        file=_MARKS,
        old="await self._record(reached, looked_at)\n                    recorded_at = time.monotonic()\n",
        new="recorded_at = time.monotonic()\n                    await self._record(reached, looked_at)\n",
        tests=(_OF_MARKS + "test_a_mark_that_could_not_be_recorded_does_not_wait_for_the_next_period",),
    ),
    Mutant(
        name="the log is not compared with its mark",
        promise="D6",
        file=_SHARD,
        old="        await self._marks.check()\n        count =",
        new="        count =",
        tests=(_OF_MARKS + "test_a_log_restored_from_a_backup_stops_the_shard_though_its_view_is_lost",),
    ),
    Mutant(
        name="the entry at the mark is not compared",
        promise="D6",
        file=_MARKS,
        old="if message is None or message.checksum != mark.checksum:",
        new="if message is None:",
        tests=(_OF_MARKS + "test_another_entry_at_the_mark_stops_the_shard_though_its_view_is_lost",),
    ),
    Mutant(
        name="a mark of another stream is no matter",
        promise="D6",
        file=_MARKS,
        old="if mark.created_at != log_state.created_at:",
        new="if False:",
        tests=(_OF_MARKS + "test_another_stream_stops_the_shard_though_its_view_is_lost",),
    ),
    Mutant(
        name="the folding waits for the mark",
        promise="D6",
        file=_MARKS,
        old="        try:\n            yield\n",
        new="        await asyncio.wait([task], timeout=60)\n        try:\n            yield\n",
        tests=(_OF_MARKS + "test_a_projector_that_cannot_record_goes_on_folding",),
    ),
    Mutant(
        name="a projector tells before the view has the batch: the answer leaves before the fold is kept",
        promise="D4",
        file=_SHARD,
        old=_APPLY,
        new=f"self._tell(folded)\n        {_APPLY}",
        tests=(_OF_OWNER + "test_nobody_is_told_before_the_view_has_the_batch",),
    ),
    Mutant(
        name="sequences are not checked for gaps",
        promise="D3",
        file=_SHARD,
        old="if message.seq != expected:",
        new="if False:",
        tests=(_TRUST + "test_a_gap_stops_the_shard_before_it",),
    ),
    Mutant(
        name="the first entries that an owner reads may follow a gap",
        promise="D3",
        file=_SHARD,
        old="if self._watermark.seq == 0:",
        new="if True:",
        tests=(_OF_OWNER + "test_a_gap_after_the_watermark_stops_the_shard",),
    ),
    Mutant(
        name="the entry at the watermark is not compared at a take-over",
        promise="D3",
        file=_SHARD,
        old="if message is None or message.checksum != watermark.checksum:",
        new="if message is None:",
        tests=(_TRUST + "test_another_entry_at_the_watermark_stops_the_shard",),
    ),
    Mutant(
        name="the entry at the watermark is not compared when the consumer was made anew",
        promise="D3",
        file=_SHARD,
        old="if follower.restarts != restarts:",
        new="if False:",
        tests=(_OF_OWNER + "test_an_owner_looks_at_its_watermark_again_when_its_consumer_was_made_anew",),
    ),
    Mutant(
        name="a stream that was made anew is folded on",
        promise="D3",
        file=_SHARD,
        old="if watermark.created_at != log_state.created_at:",
        new="if False:",
        tests=(_TRUST + "test_a_recreated_stream_stops_the_shard",),
    ),
    Mutant(
        name="a torn view is folded on",
        promise="D3",
        file=_SHARD,
        old="if found.watermark is None or found.is_dirty or self._is_damaged:",
        new="if found.watermark is None or self._is_damaged:",
        tests=(_REBUILD + "test_a_half_way_batch_whose_owner_died_is_rebuilt_by_the_next",),
    ),
    Mutant(
        name="an owner gives up a half-applied batch, though it still holds its bytes",
        promise="D3",
        file=_SHARD,
        old="for _ in range(RESENDS_MAX):\n            try:\n                await self._view.apply(",
        new="for _ in range(1):\n            try:\n                await self._view.apply(",
        tests=(_OF_OWNER + "test_the_owner_of_a_half_applied_batch_sends_it_again",),
    ),
    Mutant(
        name="an owner does not notice that its view went back",
        promise="D5",
        file=_SHARD,
        old="if found.is_dirty or found.watermark != self._watermark or found.is_rebuilding != is_rebuilding:",
        new="if False:",
        tests=(_REBUILD + "test_a_view_that_went_back_is_folded_forward_to_the_same",),
    ),
    Mutant(
        name="an owner leaves a sign of a rebuild where its view went back to it",
        promise="D5",
        file=_SHARD,
        old=" or found.is_rebuilding != is_rebuilding:",
        new=":",
        tests=(_OF_OWNER + "test_a_view_that_went_back_into_its_rebuild_lets_readers_in_again",),
    ),
    Mutant(
        name="readers are let in before a rebuild has reached the head",
        promise="G6",
        file=_SHARD,
        old="is_rebuilding=self._rebuild_until > 0,",
        new="is_rebuilding=False,",
        tests=(_REBUILD + "test_readers_wait_until_a_rebuild_is_level",),
    ),
    Mutant(
        name="a new owner forgets the entries that were seen before",
        promise="D2",
        file=_SHARD,
        old="self._memory.remember(entry_ids, stored_at=log_state.broker_time)",
        new="pass",
        tests=(_OF_OWNER + "test_an_entry_that_is_in_the_log_twice_is_folded_once",),
    ),
    Mutant(
        name="a repeated entry id is not noticed in the log",
        promise="D2",
        file=_MEMORY,
        old="if entry_id in seen:",
        new="if False:",
        tests=(_OF_OWNER + "test_an_entry_that_is_in_the_log_twice_is_folded_once",),
    ),
    Mutant(
        name="the checksum of the headers is ignored",
        promise="D3",
        file=_BATCH,
        old="if not is_sound:",
        new="if False:",
        tests=(_TRUST + "test_headers_that_cannot_be_trusted_stop_the_shard",),
    ),
    Mutant(
        name="the checksum of the payload is ignored",
        promise="D3",
        file=_BATCH,
        old="if not is_payload_sound(message.checksum, message.payload):",
        new="if False:",
        tests=(_OF_BATCH + "test_a_damaged_payload_is_parked_and_halts_its_execution",),
    ),
    Mutant(
        name="an entry is folded though its headers name another execution",
        promise="D3",
        file=_BATCH,
        old='"" if is_consistent else "the entry contradicts its headers"',
        new='""',
        tests=(_TRUST + "test_a_damaged_payload_halts_its_execution_alone",),
    ),
    Mutant(
        name="an entry of a later build is folded by the rules of this one",
        promise="D1",
        file=_BATCH,
        old="if not is_known_version(message.payload):",
        new="if False:",
        tests=(_TRUST + "test_an_entry_of_a_newer_version_gives_the_shard_up",),
    ),
    Mutant(
        name="a listed execution without its header is read as an unknown one",
        promise="D5",
        file=_BATCH,
        old="if header is None and (fetched.is_listed or fetched.field_count):",
        new="if False:",
        tests=(_REBUILD + "test_a_view_that_contradicts_itself_is_rebuilt",),
    ),
    Mutant(
        name="a record that was not loaded is read as absent",
        promise="G1",
        file=_MEMORY,
        old="if not self.is_whole and field not in self.records:",
        new="if False:",
        tests=(_OF_BATCH + "test_a_record_that_was_not_loaded_is_never_read_as_absent",),
    ),
)
