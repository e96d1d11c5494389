"""Breaks of the policy language: what would let a call through, or make a verdict slow."""

from tests.mutants.mutant import Mutant

_PREDICATES = "kernel/domain/policy/predicates.py"
_EVALUATION = "kernel/domain/policy/evaluation.py"
_GLOBS = "kernel/domain/policy/globs.py"
_DOCUMENT = "kernel/domain/policy/document.py"
_NUMBERS = "kernel/domain/policy/numbers.py"
_ARGUMENTS = "kernel/domain/policy/arguments.py"

_OF_TABLE = "tests/unit/policy/test_truth_table.py::"
_OF_VALUES = "tests/unit/policy/test_values.py::"
_OF_EVALUATION = "tests/unit/policy/test_evaluation.py::"
_OF_LOADING = "tests/unit/policy/test_loading.py::"
_OF_LIMITS = "tests/unit/policy/test_loading_limits.py::"

OF_POLICY = (
    Mutant(
        name="leaving an argument out passes an allow rule with not_equals",
        promise="D1",
        file=_PREDICATES,
        old="return not is_allow\n        if is_allow",
        new="return True\n        if is_allow",
        tests=(_OF_TABLE + "test_a_cell_of_the_truth_table",),
    ),
    Mutant(
        name="an argument of another type passes an allow rule with not_equals",
        promise="D1",
        file=_PREDICATES,
        old="is_allow and json_type(found) not in types",
        new="False and json_type(found) not in types",
        tests=(_OF_TABLE + "test_a_cell_of_the_truth_table",),
    ),
    Mutant(
        name="what is no number escapes a deny rule with a comparison",
        promise="D1",
        file=_PREDICATES,
        old="return not is_allow if number is None",
        new="return False if number is None",
        tests=(_OF_TABLE + "test_a_cell_of_the_truth_table",),
    ),
    Mutant(
        name="a subject too large for a regex escapes a deny rule",
        promise="D1",
        file=_EVALUATION,
        old="holds = not predicate.is_allow",
        new="holds = False",
        tests=(_OF_VALUES + "test_a_regex_subject_above_the_limit_is_undetermined",),
    ),
    Mutant(
        name="a verdict may cost without end",
        promise="D1",
        file=_ARGUMENTS,
        old="if steps > self._work_left:",
        new="if steps < 0:",
        tests=(_OF_VALUES + "test_all_that_one_verdict_may_cost_is_bounded",),
    ),
    Mutant(
        name="a dotted path beats the member of that very name",
        promise="D1",
        file=_ARGUMENTS,
        old="isinstance(args, dict) and path.text in args",
        new="isinstance(args, dict) and path.text in args and len(path.segments) == 1",
        tests=(_OF_VALUES + "test_a_path_leads_to_its_place",),
    ),
    Mutant(
        name="numbers are compared as floats",
        promise="D1",
        file=_NUMBERS,
        old="return Number(-1 if literal",
        new="significant = significant[:15]\n    return Number(-1 if literal",
        tests=(_OF_VALUES + "test_equality_is_typed_deep_and_exact",),
    ),
    Mutant(
        name="true is one",
        promise="D1",
        file=_NUMBERS,
        old="isinstance(value, int) and not isinstance(value, bool)",
        new="isinstance(value, int)",
        tests=(_OF_TABLE + "test_a_cell_of_the_truth_table",),
    ),
    Mutant(
        name="the pieces of a glob may overlap",
        promise="D1",
        file=_GLOBS,
        old=" and len(text) >= length_min",
        new="",
        tests=("tests/unit/policy/test_globs.py::test_a_glob_matches_what_the_table_says",),
    ),
    Mutant(
        name="a key that stands twice is taken",
        promise="D1",
        file=_DOCUMENT,
        old="if key in values:",
        new="if key in values and not field:",
        tests=(_OF_LOADING + "test_a_bundle_that_is_not_loadable_is_refused_with_line_and_field",),
    ),
    Mutant(
        name="a bundle may be nested without end",
        promise="D1",
        file=_DOCUMENT,
        old="if self._depth > NESTING_MAX:",
        new="if self._depth > 100 * NESTING_MAX:",
        tests=(_OF_LOADING + "test_a_bundle_that_is_not_loadable_is_refused_with_line_and_field",),
    ),
    Mutant(
        name="any number of values is loaded",
        promise="D1",
        file=_DOCUMENT,
        old="if self._nodes > NODES_MAX:",
        new="if self._nodes > 10 * NODES_MAX:",
        tests=(_OF_LIMITS + "test_what_would_be_slow_is_refused",),
    ),
    Mutant(
        name="a broken bundle allows",
        promise="D1",
        file=_EVALUATION,
        old='Verdict("deny", "bundle-error"',
        new='Verdict("allow", "bundle-error"',
        tests=(_OF_EVALUATION + "test_a_stored_bundle_that_cannot_be_compiled_denies_everything",),
    ),
    Mutant(
        name="rules are tried as they stand",
        promise="D1",
        file="kernel/domain/policy/loading.py",
        old="tuple(sorted(rules, key=lambda rule: rule.priority))",
        new="tuple(rules)",
        tests=(_OF_EVALUATION + "test_the_lowest_priority_is_tried_first_wherever_it_stands",),
    ),
)
