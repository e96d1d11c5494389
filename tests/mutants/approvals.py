"""Breaks around approvals: who may decide, what the lists say, when one expires. The fold has its own elsewhere."""

from tests.mutants.mutant import Mutant

_CHANGES = "kernel/view/changes.py"
_COMMANDS = "kernel/view/commands.py"
_DOOR = "kernel/door/approvals.py"
_DOOR_SIDE = "kernel/view/door_side.py"
_ENTRIES = "workers/dispatching/entries.py"

_OF_THE_COMMANDS = "tests/scenario/test_approval_commands.py::"
_OF_THE_EXAMPLE = "tests/scenario/test_shell_example.py::"
_OF_CHANGES = "tests/contract/test_view_changes.py::"
_OF_DECISIONS = "tests/integration/test_door_approvals.py::"
_OF_EXPIRY = "tests/integration/test_dispatcher_approvals.py::"
_OF_THE_DOOR = "tests/unit/test_door_approvals.py::"
_OF_REDIS = "tests/integration/test_redis_approvals.py::"
_OF_THE_FOLDED = (
    "tests/property/test_projector_properties.py::test_the_view_equals_a_fold_of_the_list_whatever_the_batches"
)

OF_APPROVALS = (
    Mutant(
        name="a decided approval stays in the lists of the pending ones",
        promise="G6",
        file=_COMMANDS,
        old="                removals.setdefault(key, []).append(member)",
        new="                pass",
        tests=(_OF_REDIS + "test_a_decided_approval_leaves_nothing_in_the_lists_of_the_pending_ones",),
    ),
    Mutant(
        name="the tenant is left out of the key of a list of approvals",
        promise="G7",
        file="kernel/view/keys.py",
        old=":approvals:{_checked(tenant)}{by_status}",
        new=":approvals{by_status}",
        tests=("tests/contract/test_view_keys.py::test_two_tenants_never_share_a_key",),
    ),
    Mutant(
        name="a record that is gone from the view is read as no such approval",
        promise="D5",
        file=_DOOR_SIDE,
        old="_listed_approval(member, raw) for member, raw in zip(members, reply[4::2], strict=True)",
        new="_listed_approval(member, raw) for member, raw in zip(members, reply[4::2], strict=True) if raw",
        tests=(_OF_REDIS + "test_a_list_with_a_record_that_is_gone_is_unavailable_and_not_shorter",),
    ),
    Mutant(
        name="another approval's record is answered from",
        promise="G7",
        file=_DOOR_SIDE,
        old="if record.approval_id != approval_id:",
        new="if False:",
        tests=(_OF_REDIS + "test_another_approvals_record_is_never_answered_from",),
    ),
    Mutant(
        name="an approval is never due",
        promise="D6",
        file=_CHANGES,
        old="if is_new or old.approval_at != new.approval_at or",
        new="if False and",
        tests=(_OF_CHANGES + "test_an_approval_is_due_when_its_time_is_over_and_no_more_once_it_is_decided",),
    ),
    Mutant(
        name="the hold of one approval covers the next one that is due at the same time",
        promise="D6",
        file=_CHANGES,
        old="is_same_approval = before is not None and before.approval == after.approval",
        new="is_same_approval = True",
        tests=(_OF_CHANGES + "test_an_approval_that_follows_another_at_the_same_time_is_a_duty_of_its_own",),
    ),
    Mutant(
        name="a batch keeps its approvals from the lists",
        promise="G6",
        file="workers/projecting/batch.py",
        old="approvals=tuple(execution.approvals.values()),",
        new="approvals=(),",
        tests=(_OF_THE_FOLDED,),
    ),
    Mutant(
        name="an approval that ends is taken for a new one",
        promise="G6",
        file="workers/projecting/memory.py",
        old="before = noted.before if noted is not None else None if known is None else known.status",
        new="before = None",
        tests=(_OF_THE_FOLDED,),
    ),
    Mutant(
        name="what a batch did to an approval is told again with the next one",
        promise="G6",
        file="workers/projecting/memory.py",
        old="        self.approvals = {}\n",
        new="",
        tests=(_OF_THE_FOLDED,),
    ),
    Mutant(
        name="nobody appends that an approval has expired",
        promise="D6",
        file="workers/dispatcher.py",
        old="entry = approval_expired(item)",
        new="entry = None",
        tests=(_OF_EXPIRY + "test_an_approval_expires_although_no_dispatcher_lived_at_its_time",),
    ),
    Mutant(
        name="an expired approval resumes under the dispatch of before, whose leases are known",
        promise="G3",
        file=_ENTRIES,
        old="dispatch_id=new_uuid7(),",
        new="dispatch_id=item.header.dispatch.dispatch_id,",
        tests=("tests/unit/test_dispatch_entries.py::test_an_expiry_brings_a_dispatch_of_its_own",),
    ),
    Mutant(
        name="every dispatcher makes an expiry of its own",
        promise="D2",
        file=_ENTRIES,
        old='id=f"approval.{pending.approval_id}",',
        new="id=new_uuid7(),",
        tests=("tests/unit/test_dispatch_entries.py::test_an_expiry_has_one_id_whoever_appends_it",),
    ),
    Mutant(
        name="anybody may decide under another's name",
        promise="G7",
        file=_DOOR,
        old="if named and ASSERT_SCOPE in principal.scopes:",
        new="if named:",
        tests=(_OF_THE_DOOR + "test_another_decider_is_named_by_those_alone_who_may",),
    ),
    Mutant(
        name="a decision that came too late is a fault of ours",
        promise="D1",
        file="kernel/door/appending.py",
        old="if isinstance(answer, Refusal | DecidedBefore):",
        new="if isinstance(answer, Refusal):",
        tests=(_OF_DECISIONS + "test_the_second_decision_learns_of_the_first_whoever_makes_it",),
    ),
    Mutant(
        name="a decision is told without its key",
        promise="D2",
        file=_DOOR,
        old='key=bodies.request_key(request, document, f"{_PATH}/{approval_id}/{verb}"),',
        new="key=None,",
        tests=(_OF_DECISIONS + "test_a_decision_repeated_with_its_key_is_given_its_first_answer",),
    ),
    Mutant(
        name="a key tells a grant from a denial by nothing",
        promise="D2",
        file=_DOOR,
        old='f"{_PATH}/{approval_id}/{verb}"',
        new='f"{_PATH}/{approval_id}"',
        tests=(_OF_DECISIONS + "test_a_decision_repeated_with_its_key_is_given_its_first_answer",),
    ),
    Mutant(
        name="an agent's signature opens the decision about its own step",
        promise="G7",
        file="kernel/door/routes.py",
        old='"/v0/approvals/{approval_id}/grant", "bearer"',
        new='"/v0/approvals/{approval_id}/grant", "either"',
        tests=(_OF_DECISIONS + "test_an_agent_decides_nothing_and_nobody_does_without_a_key",),
    ),
    Mutant(
        name="an approval is drawn for another shard than its execution's",
        promise="D2",
        file="kernel/door/drawing.py",
        old="return new_id_in(shard_of(execution_id, shards), shards)",
        new="return new_id_in(0, shards)",
        tests=(_OF_THE_DOOR + "test_an_approval_lies_in_the_shard_of_its_execution",),
    ),
    Mutant(
        name="a list of approvals ends with the first read of a shard",
        promise="D7",
        file=_DOOR,
        old="self.is_over = len(self.waiting) < self.query.limit",
        new="self.is_over = True",
        tests=(_OF_THE_DOOR + "test_a_list_without_limit_and_cursor_is_whole_however_long_it_is",),
    ),
    Mutant(
        name="an agent's text reaches the screen of a person as it is",
        promise="D7",
        file="kernel/commands/actions.py",
        old="each if each.isprintable() else",
        new="each if True else",
        tests=(_OF_THE_COMMANDS + "test_what_an_agent_sends_can_neither_hide_nor_draw_over_what_a_person_is_shown",),
    ),
    Mutant(
        name="a person is shown the spelling of the arguments and not what they are",
        promise="D7",
        file="kernel/commands/actions.py",
        old="_visible(json.dumps(json.loads(raw), ensure_ascii=False))",
        new="_visible(raw.decode())",
        tests=(_OF_THE_COMMANDS + "test_a_letter_is_shown_as_itself_however_it_was_spelled",),
    ),
    Mutant(
        name="the example lets a second line follow a harmless one",
        promise="D7",
        file="examples/shell_policy.yaml",
        old="'^(pwd|",
        new="'(?m)^(pwd|",
        tests=(_OF_THE_EXAMPLE + "test_everything_that_is_not_known_to_be_harmless_is_asked_about",),
    ),
    Mutant(
        name="the example repeats what an attempt that died may have run",
        promise="G1",
        file="examples/shell_agent.py",
        old='"idempotency": "at_most_once"',
        new='"idempotency": "safe_to_retry"',
        tests=(_OF_THE_EXAMPLE + "test_a_person_grants_one_command_and_denies_another",),
    ),
)
