"""Breaks of values: what is read, hashed, signed and checked."""

from tests.mutants.mutant import Mutant

_JSON = "kernel/domain/json_values.py"
_CANONICAL = "kernel/domain/canonical.py"
_SIGNATURES = "kernel/domain/signatures.py"
_FRAMING = "kernel/domain/framing.py"

_OF_JSON = "tests/unit/test_json_values.py::"
_OF_SIGNATURES = "tests/unit/test_signatures.py::"
_OF_CANONICAL = "tests/unit/test_canonical.py::"

OF_VALUES = (
    Mutant(
        name="of duplicate members the first wins",
        promise="G5",
        file=_JSON,
        old="box[name] = value",
        new="box.setdefault(name, value)",
        tests=(_OF_JSON + "test_the_last_duplicate_wins_in_the_place_of_the_first",),
    ),
    Mutant(
        name="numbers are normalised",
        promise="G5",
        file=_JSON,
        old="return msgspec.Raw(text)",
        new="return msgspec.Raw(repr(float(text)))",
        tests=(_OF_JSON + "test_every_finite_literal_is_kept_character_for_character",),
    ),
    Mutant(
        name="the order of members makes another step",
        promise="G5",
        file=_CANONICAL,
        old='msgspec.json.Encoder(order="sorted")',
        new="msgspec.json.Encoder()",
        tests=(_OF_CANONICAL + "test_white_space_order_and_escape_spelling_do_not_count",),
    ),
    Mutant(
        name="the occurrence is left out of the identity of a step",
        promise="G5",
        file="kernel/domain/identity.py",
        old="args_hash, str(occurrence))",
        new='args_hash, "0")',
        tests=("tests/unit/test_identity.py::test_every_vector_has_its_step_id",),
    ),
    Mutant(
        name="a signature does not cover the path",
        promise="G7",
        file=_SIGNATURES,
        old="method.upper(), *rest, body",
        new="method.upper(), *rest[1:], body",
        tests=(_OF_SIGNATURES + "test_one_changed_field_ends_a_v1_signature",),
    ),
    Mutant(
        name="the window of a timestamp is open on one side",
        promise="G7",
        file=_SIGNATURES,
        old="abs(int(value) - now_seconds) <= window_seconds",
        new="now_seconds - int(value) <= window_seconds",
        tests=(_OF_SIGNATURES + "test_a_timestamp_holds_inside_the_window_either_way",),
    ),
    Mutant(
        name="an agent that requires the newer signature takes the older one",
        promise="G7",
        file=_SIGNATURES,
        old="return not require_v1 and _matches(",
        new="return _matches(",
        tests=(_OF_SIGNATURES + "test_require_v1_refuses_a_good_body_signature",),
    ),
)
