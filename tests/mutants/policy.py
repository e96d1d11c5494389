"""Breaks of the policy language: what would let a call through, or make a verdict slow."""

from tests.mutants.mutant import Mutant

_PREDICATES = "kernel/domain/policy/predicates.py"
_EVALUATION = "kernel/domain/policy/evaluation.py"
_GLOBS = "kernel/domain/policy/globs.py"
_DOCUMENT = "kernel/domain/policy/document.py"
_NUMBERS = "kernel/domain/policy/numbers.py"
_ARGUMENTS = "kernel/domain/policy/arguments.py"

_POLICING = "kernel/door/policing.py"
_BUCKETS = "kernel/domain/buckets.py"
_SCRIPT = "kernel/view/bucket.lua"
_MEMORY = "kernel/view/memory.py"

_OF_TABLE = "tests/unit/policy/test_truth_table.py::"
_OF_VALUES = "tests/unit/policy/test_values.py::"
_OF_EVALUATION = "tests/unit/policy/test_evaluation.py::"
_OF_LOADING = "tests/unit/policy/test_loading.py::"
_OF_LIMITS = "tests/unit/policy/test_loading_limits.py::"
_OF_POLICING = "tests/integration/test_door_policing.py::"
_OF_TIMES = "tests/integration/test_door_approval_timeout.py::"
_OF_REBUILDS = "tests/scenario/test_rebuild_after_changes.py::"
_OF_NAMES = "tests/unit/test_buckets.py::"
_REDIS = "tests/contract/test_view_contract.py::TestRedisView::"
_DICTS = "tests/contract/test_view_contract.py::TestMemoryView::"

OF_POLICY = (
    Mutant(
        name="of several globs those with their star at the end are not looked at",
        promise="G9",
        file=_GLOBS,
        old="text.startswith(starts) or text.endswith(ends)",
        new="text.endswith(ends)",
        tests=("tests/property/test_policy_properties.py::test_any_of_several_globs_is_what_each_of_them_says",),
    ),
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
    Mutant(
        name="an agent without a bundle may do everything on a server",
        promise="D1",
        file=_POLICING,
        old='"allow" if settings.mode == "dev" else "deny"',
        new='"allow"',
        tests=(_OF_POLICING + "test_the_newest_bundle_decides_about_new_steps_and_not_about_recorded_ones",),
    ),
    Mutant(
        name="a step that is recorded already costs a token",
        promise="D1",
        file=_POLICING,
        old="answer is not None and answer.is_new and answer.rule_id",
        new="answer is not None and answer.rule_id",
        tests=(_OF_POLICING + "test_a_token_that_was_taken_for_a_recorded_step_goes_back",),
    ),
    Mutant(
        name="a step that may have run already costs a token",
        promise="D1",
        file=_POLICING,
        old="answer.is_new and answer.rule_id == token.rule_id",
        new="answer.is_new",
        tests=(_OF_POLICING + "test_a_step_that_may_have_run_already_is_denied_before_a_token_is_taken",),
    ),
    Mutant(
        name="a limiter that is away lets through what the rule says it must not",
        promise="D1",
        file=_POLICING,
        old='limited == OVER or terms.on_error == "deny"',
        new="limited == OVER",
        tests=(_OF_POLICING + "test_a_limiter_that_is_away_means_what_the_rule_says",),
    ),
    Mutant(
        name="agents share the bucket of a rule that is each agent's",
        promise="D1",
        file=_BUCKETS,
        old='if terms.per == "agent" else',
        new='if terms.per == "nobody" else',
        tests=(_OF_NAMES + "test_agents_have_a_bucket_each_and_share_a_global_one",),
    ),
    Mutant(
        name="a bucket may hold more than its record",
        promise="D1",
        file=_BUCKETS,
        old="capacity = min(_PARTS_MAX, terms.max_calls * terms.window_ms * 1000)",
        new="capacity = terms.max_calls * terms.window_ms * 1000",
        tests=(_OF_NAMES + "test_what_the_largest_bucket_holds_fits_into_a_record",),
    ),
    Mutant(
        name="tenants share their buckets",
        promise="G4",
        file="kernel/view/keys.py",
        old="{{t:{_checked(tenant)}}}:rate:",
        new="{{t:all}}:rate:",
        tests=(_REDIS + "test_a_bucket_belongs_to_its_tenant_and_its_name",),
    ),
    Mutant(
        name="a bucket of Redis fills beyond full",
        promise="D1",
        file=_SCRIPT,
        old="math.min(full, parts + math.max(0, now - at) * calls)",
        new="parts + math.max(0, now - at) * calls",
        tests=(_REDIS + "test_a_bucket_that_is_used_now_and_then_never_holds_more_than_it_may",),
    ),
    Mutant(
        name="a bucket of Redis is forgotten before it is full",
        promise="D1",
        file=_SCRIPT,
        old="'PX', window)",
        new="'PX', math.ceil(window / calls))",
        tests=(_REDIS + "test_what_flows_back_between_two_refusals_adds_up",),
    ),
    Mutant(
        name="a refusal starts the refill of a bucket anew",
        promise="D1",
        file=_SCRIPT,
        old="if taken == 0 then\n",
        new="if taken == 0 then\n  redis.call('SET', KEYS[1], string.format('0/%.0f', now), 'PX', window)\n",
        tests=(_REDIS + "test_what_flows_back_between_two_refusals_adds_up",),
    ),
    Mutant(
        name="a bucket in memory fills beyond full while it is used",
        promise="D1",
        file=_MEMORY,
        old="held = min(full, parts + (now - at) * max_calls)",
        new="held = parts + (now - at) * max_calls",
        tests=(_DICTS + "test_a_bucket_that_is_used_now_and_then_never_holds_more_than_it_may",),
    ),
    Mutant(
        name="an approval waits for as long as by default, whatever the door is set up for",
        promise="D1",
        file=_POLICING,
        old="            approval_timeout_ms=self._approval_timeout_ms,\n",
        new="",
        tests=(_OF_TIMES + "test_an_approval_waits_as_its_rule_says_and_else_as_the_door_is_set_up",),
    ),
    Mutant(
        name="an approval waits as the door is set up, whatever its rule says",
        promise="D1",
        file=_EVALUATION,
        old="approval_timeout_ms if asked.timeout_ms is None else asked.timeout_ms",
        new="approval_timeout_ms",
        tests=(_OF_TIMES + "test_an_approval_waits_as_its_rule_says_and_else_as_the_door_is_set_up",),
    ),
    Mutant(
        name="an approval that is folded anew begins to wait anew",
        promise="G6",
        file="kernel/domain/fold/approvals.py",
        old="        timeout_at=draft.now + terms.timeout_ms * 1000,",
        new="        timeout_at=__import__('time').time_ns() // 1000 + terms.timeout_ms * 1000,",
        tests=(
            _OF_REBUILDS
            + "test_a_view_that_is_rebuilt_after_policy_changes_revocations_and_a_quota_change_is_the_same",
        ),
    ),
    Mutant(
        name="what an execution has taken from a bucket is not counted",
        promise="G6",
        file="kernel/domain/fold/draft.py",
        old="        self.buckets[bucket_digest] = bucket\n",
        new="",
        tests=(
            _OF_REBUILDS
            + "test_a_view_that_is_rebuilt_after_policy_changes_revocations_and_a_quota_change_is_the_same",
        ),
    ),
    Mutant(
        name="the dry run judges another target than the door",
        promise="D1",
        file="kernel/policy_commands.py",
        old="target=_text(options.target)",
        new="target=_text(options.target).lower()",
        tests=(
            "tests/scenario/test_cases_governance.py::test_p1_globs_cross_every_character_and_the_dry_run_judges_alike",
        ),
    ),
)
