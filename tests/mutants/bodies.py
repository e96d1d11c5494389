"""Breaks of large bodies: what stands beside the log, what is shared, what is read back, and who waits."""

from tests.mutants.mutant import Mutant

_SPILLING = "kernel/door/spilling.py"
_FETCHING = "kernel/door/fetching.py"
_CUTTING = "kernel/domain/spilling.py"
_READING = "kernel/door/reading.py"
_LARGE_BODIES = "kernel/door/large_bodies.py"

_DOOR = "tests/integration/test_door_large_bodies.py::"
_OF_FETCHING = "tests/unit/test_door_fetching.py::"
_OF_CUTTING = "tests/unit/test_spilling.py::"
_OF_READING = "tests/unit/test_door_reading.py::"
_OF_LARGE_BODIES = "tests/unit/test_door_large_bodies.py::"

OF_BODIES = (
    Mutant(
        name="an entry refers to pieces of a stream that went back",
        promise="G1",
        file=_SPILLING,
        old="if stored.seq <= end and not stored.is_duplicate:",
        new="if False:",
        tests=(_DOOR + "test_nothing_refers_to_pieces_of_a_stream_that_went_back",),
    ),
    Mutant(
        name="an entry refers to pieces that another request has found to be gone",
        promise="G1",
        file=_SPILLING,
        old="if losses != self._losses:",
        new="if False:",
        tests=("tests/unit/test_door_spilling.py::test_what_another_request_found_to_be_gone_is_not_referred_to",),
    ),
    Mutant(
        name="a piece that one execution has stored stands for another's",
        promise="G7",
        file=_SPILLING,
        old="hashlib.sha256(of_execution + piece).digest()",
        new="hashlib.sha256(piece).digest()",
        tests=(_DOOR + "test_a_step_is_the_same_whether_its_arguments_are_shared_or_not",),
    ),
    Mutant(
        name="a conversation is stored again with every call",
        promise="D5",
        file=_SPILLING,
        old="if key in self._known}",
        new="if False}",
        tests=("tests/unit/test_door_spilling.py::test_what_goes_on_is_put_once",),
    ),
    Mutant(
        name="a body that could not be stored leaves its outcome unknown",
        promise="G9",
        file=_SPILLING,
        old="raise LogUnavailable(_NOT_IN_TIME) from error",
        new="raise",
        tests=("tests/unit/test_door_spilling.py::test_what_nobody_acknowledged_certainly_did_not_happen",),
    ),
    Mutant(
        name="earlier builds take the bodies that stand elsewhere for null",
        promise="G6",
        file=_SPILLING,
        old=", schema=SPILLED_SCHEMA)",
        new=")",
        tests=(_DOOR + "test_every_body_is_read_back_as_it_was_sent",),
    ),
    Mutant(
        name="what two bodies share is fetched for each",
        promise="D5",
        file=_FETCHING,
        old="{seq for one in spilled.values() if one is not None for seq in one.pieces}",
        new="[seq for one in spilled.values() if one is not None for seq in one.pieces]",
        tests=(_OF_FETCHING + "test_a_piece_that_two_bodies_share_is_fetched_once",),
    ),
    Mutant(
        name="another execution's message is shown",
        promise="G7",
        file=_FETCHING,
        old="message.execution_id != execution_id or ",
        new="",
        tests=(_OF_FETCHING + "test_a_piece_that_is_not_the_one_that_was_stored_is_never_shown",),
    ),
    Mutant(
        name="the pieces of a body are not compared with what was stored",
        promise="G1",
        file=_CUTTING,
        old=" or hashlib.sha256(text).digest() != spilled.sha256:",
        new=":",
        tests=(_OF_CUTTING + "test_pieces_that_are_others_are_noticed",),
    ),
    Mutant(
        name="large outcomes that travel together swell their entry",
        promise="D5",
        file=_CUTTING,
        old="if left <= ENTRY_BODIES_BYTES_MAX:",
        new="if True:",
        tests=(_OF_CUTTING + "test_an_entry_keeps_what_fits_and_spills_the_largest_first",),
    ),
    Mutant(
        name="rests of large outcomes swell their entry",
        promise="D5",
        file=_CUTTING,
        old="if is_shared or not rest:",
        new="if True:",
        tests=(_OF_CUTTING + "test_a_text_that_nothing_begins_with_has_coarse_pieces_and_no_rest",),
    ),
    Mutant(
        name="any number of bytes of bodies is held",
        promise="G9",
        file=_READING,
        old="if more > self._free_bytes:",
        new="if False:",
        tests=(_OF_READING + "test_large_bodies_have_so_much_room_together_until_their_requests_are_answered",),
    ),
    Mutant(
        name="a tenant's many large bodies are read before another's one",
        promise="G7",
        file=_LARGE_BODIES,
        old="owner = (tenant, 0)",
        new='owner = ("", 0)',
        tests=(_OF_LARGE_BODIES + "test_tenants_take_turns_and_one_with_many_bodies_waits_behind_its_own",),
    ),
)
