"""Breaks of tenants, keys and policies: who they belong to, what they open, when they end."""

from tests.mutants.mutant import Mutant

_STATE = "kernel/control/state.py"
_KEYS = "kernel/control/keys.py"
_POLICIES = "kernel/control/policies.py"
_AUTH = "kernel/door/auth.py"
_DOOR_KEYS = "kernel/door/keys.py"

_OF_TENANTS = "tests/unit/test_control_tenants.py::"
_OF_KEYS = "tests/unit/test_control_keys.py::"
_OF_POLICIES = "tests/unit/test_control_policies.py::"
_OF_DOOR_KEYS = "tests/integration/test_door_keys.py::"
_OF_DOOR_POLICIES = "tests/integration/test_door_policies.py::"
_OF_STALLS = "tests/integration/test_control_stalls.py::"
_OF_TIMES = "tests/integration/test_door_strangers_timing.py::"
_OF_RECORD = "tests/integration/test_door_record.py::"
_OF_STRANGERS = "tests/integration/test_door_strangers.py::"

OF_CONTROL = (
    Mutant(
        name="a revoked key stays in the record",
        promise="D7",
        file=_STATE,
        old="        self._keys.drop(entry.tenant, entry.key_id)\n",
        new="",
        tests=(_OF_TENANTS + "test_a_revoked_key_is_gone_and_unknown_from_then_on",),
    ),
    Mutant(
        name="a key is made for a tenant that nobody made",
        promise="D7",
        file=_STATE,
        old="if entry.tenant not in self._tenants:",
        new="if False:",
        tests=(_OF_TENANTS + "test_a_key_of_an_unknown_tenant_is_refused",),
    ),
    Mutant(
        name="a second key takes the place of the first of its id",
        promise="D7",
        file=_STATE,
        old="if entry.key_id in keys:",
        new="if False:",
        tests=(_OF_TENANTS + "test_a_key_id_is_used_once",),
    ),
    Mutant(
        name="a tenant has keys without end",
        promise="D7",
        file=_STATE,
        old="if len(keys) >= KEYS_MAX:",
        new="if False:",
        tests=(_OF_TENANTS + "test_a_tenant_cannot_fill_the_memory_of_every_process_with_keys",),
    ),
    Mutant(
        name="the bundles of a tenant have no bound together",
        promise="D7",
        file=_STATE,
        old="if entry.bundle and chars > BUNDLE_CHARS_MAX:",
        new="if False:",
        tests=(_OF_TENANTS + "test_the_bundles_of_a_tenant_have_a_bound_together",),
    ),
    Mutant(
        name="registering an agent again drops its policy",
        promise="D7",
        file=_STATE,
        old="        webhook_url=entry.webhook_url,\n        secret=found.secret if",
        new='        webhook_url=entry.webhook_url,\n        bundle="",\n        secret=found.secret if',
        tests=(
            _OF_TENANTS + "test_an_agent_that_is_registered_again_keeps_its_policy_and_one_that_is_deleted_does_not",
        ),
    ),
    Mutant(
        name="the version of a policy does not grow",
        promise="D7",
        file=_STATE,
        old="policy_version=seq if entry.bundle else 0,",
        new="policy_version=1 if entry.bundle else 0,",
        tests=(_OF_TENANTS + "test_the_version_of_a_policy_is_the_sequence_of_its_entry",),
    ),
    Mutant(
        name="a change of a tenant without quotas removes them",
        promise="D7",
        file=_STATE,
        old="quotas=before.quotas if entry.quotas is UNSET else entry.quotas,",
        new="quotas=Quotas() if entry.quotas is UNSET else entry.quotas,",
        tests=(
            _OF_TENANTS + "test_what_a_change_of_a_tenant_sends_replaces_the_whole_of_it_and_what_it_leaves_out_stays",
        ),
    ),
    Mutant(
        name="an expired key works",
        promise="D7",
        file=_KEYS,
        old="return found if found is not None and not _is_over(found, now) else None",
        new="return found",
        tests=(_OF_KEYS + "test_a_key_ends_at_the_time_it_was_given",),
    ),
    Mutant(
        name="a part of a key's hash is enough",
        promise="G7",
        file=_KEYS,
        old="if hmac.compare_digest(record.hash, sent_hash):",
        new="if record is not None:",
        tests=(_OF_KEYS + "test_a_key_is_found_by_its_whole_hash_alone",),
    ),
    Mutant(
        name="a process goes on taking a key that was revoked elsewhere",
        promise="D7",
        file=_KEYS,
        old="            self._forget(tenant, key_id)\n",
        new="",
        tests=(_OF_KEYS + "test_a_key_works_at_once_here_and_soon_elsewhere_and_ends_likewise",),
    ),
    Mutant(
        name="a request that waits reads on with a key that was revoked meanwhile",
        promise="D7",
        file="kernel/door/events.py",
        old="                self._records.check_again(request)\n                left = ",
        new="                left = ",
        tests=(_OF_DOOR_KEYS + "test_a_request_that_waits_reads_nothing_more_once_its_key_has_ended",),
    ),
    Mutant(
        name="an old version of a policy is taken for the new one",
        promise="D7",
        file=_POLICIES,
        old="if policy is None or policy.version != version:",
        new="if policy is None:",
        tests=(_OF_POLICIES + "test_a_later_version_takes_the_place_of_the_one_before",),
    ),
    Mutant(
        name="the compiled policies of two tenants are mixed up",
        promise="G7",
        file=_POLICIES,
        old="policy = self._compiled.get((tenant, agent_id))",
        new='policy = self._compiled.get(("t", agent_id))',
        tests=(_OF_POLICIES + "test_a_version_is_compiled_once_however_many_ask",),
    ),
    Mutant(
        name="a key opens every route, whatever its scopes",
        promise="G7",
        file=_AUTH,
        old="if principal.scopes.isdisjoint(route.scopes):",
        new="if not principal.scopes:",
        tests=(_OF_STRANGERS + "test_a_key_without_the_scope_is_refused_alike_for_every_id",),
    ),
    Mutant(
        name="a key acts in the default tenant, whosever it is",
        promise="G7",
        file=_AUTH,
        old="return Principal(tenant=key.tenant, name=key.name,",
        new="return Principal(tenant=DEFAULT_TENANT, name=key.name,",
        tests=(_OF_STRANGERS + "test_another_tenants_key_meets_every_id_as_an_unknown_one",),
    ),
    Mutant(
        name="another tenant's bearer owns the execution",
        promise="G7",
        file=_AUTH,
        old="return caller.tenant == located.tenant",
        new="return bool(caller.tenant)",
        tests=(_OF_STRANGERS + "test_another_tenants_key_meets_every_id_as_an_unknown_one",),
    ),
    Mutant(
        name="the key of the environment is an operator's",
        promise="G7",
        file=_AUTH,
        old='(settings.api_key, "api", ALL_SCOPES - {OPERATOR}),',
        new='(settings.api_key, "api", ALL_SCOPES),',
        tests=("tests/integration/test_door_auth.py::test_the_api_key_has_every_scope_but_operator",),
    ),
    Mutant(
        name="the operator's key reads executions",
        promise="G7",
        file=_AUTH,
        old='(settings.operator_key, "operator", frozenset({OPERATOR})),',
        new='(settings.operator_key, "operator", ALL_SCOPES),',
        tests=(_OF_DOOR_KEYS + "test_an_operator_key_opens_nothing_of_an_execution",),
    ),
    Mutant(
        name="a tenant's administrator gives the scope operator",
        promise="G7",
        file=_DOOR_KEYS,
        old="(tenant != principal.tenant or OPERATOR in scopes):",
        new="tenant != principal.tenant:",
        tests=(_OF_DOOR_KEYS + "test_a_tenant_admin_gives_any_scope_but_operator",),
    ),
    Mutant(
        name="a tenant's administrator makes keys of another tenant",
        promise="G7",
        file=_DOOR_KEYS,
        old="(tenant != principal.tenant or OPERATOR in scopes):",
        new="OPERATOR in scopes:",
        tests=(_OF_DOOR_KEYS + "test_a_tenant_admin_cannot_name_another_tenant_and_learns_not_whether_there_is_one",),
    ),
    Mutant(
        name="a tenant's administrator revokes an operator's key",
        promise="G7",
        file=_DOOR_KEYS,
        old="(key.tenant == principal.tenant and OPERATOR not in key.scopes)",
        new="key.tenant == principal.tenant",
        tests=(_OF_DOOR_KEYS + "test_a_tenant_admin_neither_sees_nor_revokes_what_is_not_its_own",),
    ),
    Mutant(
        name="a tenant's administrator revokes another tenant's key",
        promise="G7",
        file=_DOOR_KEYS,
        old="(key.tenant == principal.tenant and OPERATOR not in key.scopes)",
        new="OPERATOR not in key.scopes",
        tests=(_OF_STRANGERS + "test_another_tenants_key_meets_every_id_as_an_unknown_one",),
    ),
    Mutant(
        name="a key is kept in clear",
        promise="D7",
        file=_DOOR_KEYS,
        old="hash=key_hash(key.encode()),",
        new="hash=key.encode(),",
        tests=("tests/integration/test_door_canaries.py::test_no_secret_and_no_key_comes_out_of_the_kernel",),
    ),
    Mutant(
        name="a policy is loaded into the default tenant, whosever key it was",
        promise="G7",
        file="kernel/door/policies.py",
        old="            tenant=principal.tenant,\n            agent_id=agent_id,\n",
        new='            tenant="default",\n            agent_id=agent_id,\n',
        tests=(_OF_DOOR_POLICIES + "test_agents_of_one_id_in_two_tenants_have_policies_of_their_own",),
    ),
    Mutant(
        name="a door starts although nobody has a key",
        promise="D7",
        file="kernel/config.py",
        old='if settings.mode != "dev" and not is_in_record and not _has_key(settings):',
        new="if False:",
        tests=("tests/unit/test_config.py::test_a_door_needs_a_key_that_somebody_holds",),
    ),
    Mutant(
        name="a manifest that says nothing of a policy removes it",
        promise="D7",
        file="kernel/manifest.py",
        old="if agent.bundle and agent.bundle != text:",
        new="if agent.bundle != text:",
        tests=("tests/unit/test_manifest.py::test_applying_sets_a_policy_once_and_never_removes_one",),
    ),
    Mutant(
        name="a command takes its key along to wherever it is sent",
        promise="D7",
        file="kernel/commands/calls.py",
        old="if not 200 <= answer.status < 300:",
        new="if answer.status >= 400:",
        tests=(
            "tests/integration/test_door_commands.py::"
            "test_another_web_server_is_told_from_a_door_and_no_redirect_is_followed",
        ),
    ),
    Mutant(
        name="a door that may have missed a revocation answers as if it had not",
        promise="G7",
        file="kernel/door/auth.py",
        old="if not self._control.is_level:",
        new="if False:",
        tests=(
            "tests/integration/test_door_control_lag.py::"
            "test_a_door_that_may_have_missed_a_revocation_answers_neither_keys_nor_signatures",
        ),
    ),
    Mutant(
        name="a door whose follower of the control stream stalls stays ready",
        promise="G7",
        file="kernel/door/presence.py",
        old="            and self._control.is_level\n",
        new="",
        tests=(
            _OF_STALLS + "test_a_door_whose_follower_stalls_is_unready_within_two_seconds_and_lets_no_request_pass",
        ),
    ),
    Mutant(
        name="a follower that stalls counts as level for as long as it waits",
        promise="D7",
        file="kernel/control/control.py",
        old="            and self._clock() - self._level_at <= self._lag_seconds_max\n",
        new="",
        tests=(
            _OF_STALLS + "test_a_door_whose_follower_stalls_is_unready_within_two_seconds_and_lets_no_request_pass",
        ),
    ),
    Mutant(
        name="a dispatcher sends by agents that may have changed",
        promise="D7",
        file="workers/dispatcher.py",
        old="        if self._control.is_level:\n            await self._offer(",
        new="        if True:\n            await self._offer(",
        tests=(_OF_STALLS + "test_a_dispatcher_whose_follower_stalls_sends_nothing_and_then_by_what_holds_by_then",),
    ),
    Mutant(
        name="what a door remembers of an execution shows in the time it takes to refuse a stranger",
        promise="G7",
        file=_AUTH,
        old="        located = await self._locate(execution_id, shard, request.deadline)\n        if located is None",
        new="        located = located or await self._locate(execution_id, shard, request.deadline)\n"
        "        if located is None",
        tests=(
            _OF_TIMES + "test_a_foreign_id_costs_another_tenants_key_what_an_unknown_one_costs",
            _OF_TIMES + "test_a_foreign_id_costs_another_agents_signature_what_an_unknown_one_costs",
        ),
    ),
    Mutant(
        name="a change of an agent is recorded under another name than its maker's",
        promise="D7",
        file="kernel/door/agents.py",
        old="            by=principal.name,\n            tenant=principal.tenant,\n            agent_id=agent_id,\n",
        new='            by="",\n            tenant=principal.tenant,\n            agent_id=agent_id,\n',
        tests=(_OF_RECORD + "test_a_change_is_recorded_under_the_name_of_the_key_that_made_it",),
    ),
    Mutant(
        name="a policy is recorded under another name than its maker's",
        promise="D7",
        file="kernel/door/policies.py",
        old="            by=principal.name,\n",
        new='            by="",\n',
        tests=(_OF_RECORD + "test_a_change_is_recorded_under_the_name_of_the_key_that_made_it",),
    ),
    Mutant(
        name="who names another decider is not on record",
        promise="G7",
        file="kernel/door/approvals.py",
        old="            principal=principal.name,\n",
        new="            principal=decided_by,\n",
        tests=("tests/scenario/test_cases_approvals.py::test_p6_who_names_another_is_on_record_beside_the_name",),
    ),
    Mutant(
        name="a request makes a series of its own",
        promise="G7",
        file="kernel/door/metrics.py",
        old="        self._requests[operation][status // 100 - 1] += 1\n",
        new="        self._requests.setdefault(f'{operation}{seconds}', [0] * 5)[status // 100 - 1] += 1\n",
        tests=("tests/scenario/test_cases_tenants.py::test_t5_no_path_method_target_agent_or_tenant_makes_a_series",),
    ),
)
