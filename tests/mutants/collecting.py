"""Breaks of collecting: which pieces of bodies are removed, when, and what another owner goes on from."""

from tests.mutants.mutant import Mutant

_COLLECTING = "workers/projecting/collecting.py"
_SPILLING = "kernel/door/spilling.py"

_OF_COLLECTING = "tests/integration/test_projector_collecting.py::"
_OF_SPILLING = "tests/unit/test_door_spilling.py::"

OF_COLLECTING = (
    Mutant(
        name="a piece is removed before its entry may have come",
        promise="G1",
        file=_COLLECTING,
        old="if since + self._kept_seconds <= before]",
        new="if since <= before]",
        tests=(_OF_COLLECTING + "test_a_broker_whose_clock_leaps_makes_no_piece_old",),
    ),
    Mutant(
        name="only the first body of an entry refers to its pieces",
        promise="G1",
        file=_COLLECTING,
        old="for body in entry.spilled.values():",
        new="for body in [*entry.spilled.values()][:1]:",
        tests=(_OF_COLLECTING + "test_what_no_entry_refers_to_is_removed_in_time_and_all_else_stays",),
    ),
    Mutant(
        name="pieces are removed while entries wait to be folded",
        promise="G1",
        file=_COLLECTING,
        old="if self._read_seq >= self._head_seq:",
        new="if True:",
        tests=(_OF_COLLECTING + "test_nothing_is_removed_while_entries_wait_to_be_folded",),
    ),
    Mutant(
        name="a mark knows of entries whose pieces it does not know",
        promise="G6",
        file=_COLLECTING,
        old="read_seq = min(self._read_seq, head.last_seq)",
        new="read_seq = self._read_seq",
        tests=(_OF_COLLECTING + "test_a_mark_knows_of_no_later_entries_than_pieces",),
    ),
    Mutant(
        name="what was folded after the last mark refers to nothing",
        promise="G6",
        file=_COLLECTING,
        old="await self._catch_up(watermark_seq)",
        new="self._read_seq = self._live_seq",
        tests=(_OF_COLLECTING + "test_what_was_folded_after_the_last_mark_is_read_again",),
    ),
    Mutant(
        name="a damaged entry refers to nothing",
        promise="G8",
        file=_COLLECTING,
        old="if entry is None:\n            # Nobody can tell what it refers to, and somebody may still mend the log.\n"
        "            self._misses += 1",
        new="if entry is None:\n            pass",
        tests=(_OF_COLLECTING + "test_what_a_damaged_entry_may_refer_to_is_kept",),
    ),
    Mutant(
        name="a young piece is taken for the old one whose place it has",
        promise="G1",
        file=_COLLECTING,
        old="if bodies.broker_time - piece.stored_at < self._kept_seconds * 1_000_000:",
        new="if False:",
        tests=(_OF_COLLECTING + "test_a_piece_in_a_stream_that_went_back_is_as_old_as_it_is",),
    ),
    Mutant(
        name="what is in a stream that became shorter is removed as if it were the one before",
        promise="G8",
        file=_COLLECTING,
        old=" or bodies.last_seq < self._end:",
        new=":",
        tests=(_OF_COLLECTING + "test_in_a_stream_that_is_shorter_than_it_was_all_that_is_there_is_kept",),
    ),
    Mutant(
        name="references that were forgotten are taken for none",
        promise="G1",
        file=_COLLECTING,
        old="self._ahead.clear()\n            self._misses += 1",
        new="self._ahead.clear()",
        tests=(_OF_COLLECTING + "test_where_too_many_references_are_to_be_remembered_all_that_is_there_is_kept",),
    ),
    Mutant(
        name="an owner without a mark takes what is there for unreferenced",
        promise="G1",
        file=_COLLECTING,
        old="self._stream, self._end = bodies.created_at, bodies.last_seq",
        new="self._stream, self._end = bodies.created_at, 0",
        tests=(_OF_COLLECTING + "test_where_the_mark_is_lost_all_that_is_there_is_kept",),
    ),
    Mutant(
        name="a door relies on what was put for an entry that never came",
        promise="G1",
        file=_SPILLING,
        old="return _without(entry, stored), Stored(known, losses)",
        new="self.keep(Stored(known, losses))\n        return _without(entry, stored), Stored(known, losses)",
        tests=(_OF_SPILLING + "test_what_no_entry_refers_to_yet_is_put_again",),
    ),
    Mutant(
        name="a door relies on what was put before a stream went back",
        promise="G1",
        file=_SPILLING,
        old="if stored.losses != self._losses:",
        new="if False:",
        tests=(_OF_SPILLING + "test_what_was_put_before_a_stream_went_back_is_not_remembered",),
    ),
    Mutant(
        name="an entry finds what was put for another one",
        promise="G1",
        file="kernel/log/naming.py",
        old='entry_id=f"{piece.entry_id}.{digest}"',
        new='entry_id=f"{piece.execution_id}.{digest}"',
        tests=(
            "tests/contract/test_log_contract.py::TestMemoryLog::"
            "test_the_same_piece_is_stored_once_and_another_entrys_is_its_own",
        ),
    ),
)
