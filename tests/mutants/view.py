"""Breaks of the view: the fence, the torn batch, leases and due work, keys."""

from tests.mutants.mutant import Mutant

_APPLY = "kernel/view/apply.lua"
_TAKE_DUE = "kernel/view/take_due.lua"
_RENEW = "kernel/view/renew.lua"
_MEMORY = "kernel/view/memory.py"
_MEMORY_SHARD = "kernel/view/memory_shard.py"
_KEYS = "kernel/view/keys.py"

_ON_MEMORY = "tests/contract/test_view_contract.py::TestMemoryView::"
_ON_REDIS = "tests/contract/test_view_contract.py::TestRedisView::"
_OF_KEYS = "tests/contract/test_view_keys.py::"

OF_THE_VIEW = (
    Mutant(
        name="a zombie owner writes to Redis",
        promise="D3",
        file=_APPLY,
        old="if redis.call('GET', owner) ~= token then",
        new="if false then",
        tests=(_ON_REDIS + "test_a_zombie_changes_nothing",),
    ),
    Mutant(
        name="a zombie owner writes to memory",
        promise="D3",
        file=_MEMORY,
        old="        state.check_owner(ownership.token, now)\n        if state.is_applied(batch):",
        new="        if state.is_applied(batch):",
        tests=(_ON_MEMORY + "test_a_zombie_changes_nothing",),
    ),
    Mutant(
        name="a former owner wipes Redis",
        promise="D3",
        file="kernel/view/wipe_begin.lua",
        old="if redis.call('GET', KEYS[1]) ~= ARGV[1] then",
        new="if false then",
        tests=(_ON_REDIS + "test_a_former_owner_wipes_nothing",),
    ),
    Mutant(
        name="a batch is applied to Redis whatever its watermark is",
        promise="D3",
        file=_APPLY,
        old="if found ~= expected or (torn and torn ~= new) then",
        new="if torn and torn ~= new then",
        tests=(_ON_REDIS + "test_a_batch_folded_from_another_watermark_changes_nothing",),
    ),
    Mutant(
        name="a batch is applied to memory whatever its watermark is",
        promise="D3",
        file=_MEMORY_SHARD,
        old="if self.watermark != batch.expected or self.dirty not in (None, batch.watermark):",
        new="if self.dirty not in (None, batch.watermark):",
        tests=(_ON_MEMORY + "test_a_batch_folded_from_another_watermark_changes_nothing",),
    ),
    Mutant(
        name="a batch is applied to Redis whatever fields its executions have",
        promise="D1",
        file=_APPLY,
        old="    if redis.call('HLEN', ARGV[at]) ~= tonumber(ARGV[at + 1]) then",
        new="    if false then",
        tests=(_ON_REDIS + "test_a_batch_that_was_folded_from_other_fields_changes_nothing",),
    ),
    Mutant(
        name="a batch is applied to memory whatever fields its executions have",
        promise="D1",
        file=_MEMORY,
        old="        state.check_sizes(batch)\n",
        new="",
        tests=(_ON_MEMORY + "test_a_batch_that_was_folded_from_other_fields_changes_nothing",),
    ),
    Mutant(
        name="the reply to a cancelled request is given to the next one",
        promise="D5",
        file="kernel/view/connections.py",
        old="            exchange = self._waiting[0]",
        new="            exchange = next((each for each in self._waiting if not each.done.done()), self._waiting[0])",
        tests=(
            "tests/integration/test_redis_cancellation.py::"
            "test_no_reply_reaches_another_request_when_calls_are_cancelled_at_random",
        ),
    ),
    Mutant(
        name="another batch is applied to a torn view",
        promise="D3",
        file=_APPLY,
        old="if found ~= expected or (torn and torn ~= new) then",
        new="if found ~= expected then",
        tests=(_ON_REDIS + "test_no_other_batch_is_applied_to_a_torn_view",),
    ),
    Mutant(
        name="dirty is cleared before the writes",
        promise="D3",
        file=_APPLY,
        old="redis.call('SET', dirty, new)",
        new="redis.call('SET', dirty, new)\nredis.call('DEL', dirty)",
        tests=(_ON_REDIS + "test_a_view_torn_by_a_half_applied_batch_says_so",),
    ),
    Mutant(
        name="a heartbeat in Redis renews a lease that is being expired",
        promise="D6",
        file=_RENEW,
        old="if redis.call('SISMEMBER', KEYS[2], place) == 1 or not",
        new="if not",
        tests=(_ON_REDIS + "test_a_lease_that_is_being_expired_is_renewed_by_the_log_alone",),
    ),
    Mutant(
        name="a heartbeat in memory renews a lease that is being expired",
        promise="D6",
        file=_MEMORY,
        old=" or where in state.marks",
        new="",
        tests=(_ON_MEMORY + "test_a_lease_that_is_being_expired_is_renewed_by_the_log_alone",),
    ),
    Mutant(
        name="a lease is expired in Redis below the floor",
        promise="D5",
        file=_TAKE_DUE,
        old="if kind == 'lease' and now < floor then",
        new="if false then",
        tests=(_ON_REDIS + "test_a_silence_of_the_doors_gives_agents_another_lease",),
    ),
    Mutant(
        name="a lease is expired in memory below the floor",
        promise="D5",
        file=_MEMORY,
        old='if kind == "lease" and state.floor is not None and now < state.floor:',
        new="if False:",
        tests=(_ON_MEMORY + "test_a_silence_of_the_doors_gives_agents_another_lease",),
    ),
    Mutant(
        name="due work taken from Redis is not held",
        promise="D6",
        file=_TAKE_DUE,
        old="redis.call('ZADD', due, now + hold_ms + 0.5, member)",
        new="",
        tests=(_ON_REDIS + "test_a_held_item_is_given_to_no_other_until_the_hold_ends",),
    ),
    Mutant(
        name="due work taken from memory is not held",
        promise="D6",
        file=_MEMORY,
        old="state.hold(member, now, hold_ms)",
        new="pass",
        tests=(_ON_MEMORY + "test_a_held_item_is_given_to_no_other_until_the_hold_ends",),
    ),
    Mutant(
        name="an execution that is folded anew keeps fields of before",
        promise="G6",
        file="kernel/view/commands.py",
        old='arguments += ("UNLINK", key, 0)',
        new="pass",
        tests=(_ON_REDIS + "test_an_execution_folded_anew_has_its_new_fields_alone",),
    ),
    Mutant(
        name="after a rebuild a lease expires before agents could renew it",
        promise="D5",
        file=_APPLY,
        old="redis.call('SET', floor, math.max(tonumber(redis.call('GET', floor) or 0), now + lease_ms))",
        new="",
        tests=(_ON_REDIS + "test_after_a_rebuild_no_lease_expires_before_another_lease_has_passed",),
    ),
    Mutant(
        name="the tenant is left out of the key of an execution",
        promise="G7",
        file=_KEYS,
        old=':x:{_checked(tenant)}:{execution_id}"',
        new=':x:{execution_id}"',
        tests=(_OF_KEYS + "test_two_tenants_never_share_a_key",),
    ),
    Mutant(
        name="the tenant is left out of the key of create keys",
        promise="G7",
        file=_KEYS,
        old=':createkeys:{_checked(tenant)}"',
        new=':createkeys"',
        tests=(_OF_KEYS + "test_two_tenants_never_share_a_key",),
    ),
    Mutant(
        name="a key is built without a tenant",
        promise="G7",
        file=_KEYS,
        old="if not _is_tenant(tenant):",
        new="if False:",
        tests=(_OF_KEYS + "test_a_key_without_its_tenant_cannot_be_built",),
    ),
)
