"""Breaks of quotas and of fair admission."""

from tests.mutants.mutant import Mutant

_QUOTAS = "kernel/door/quotas.py"
_ALLOWANCE = "kernel/door/allowance.py"
_ADMISSION = "kernel/door/admission.py"
_SHARD = "workers/projecting/shard.py"

_OF_THE_DOOR = "tests/integration/test_door_quotas.py::"
_OF_SHARES = "tests/unit/test_door_allowance.py::"
_OF_PLACES = "tests/unit/test_door_admission.py::"
_REDIS = "tests/contract/test_view_contract.py::TestRedisView::"

OF_QUOTAS = (
    Mutant(
        name="a request over quota is refused at once",
        promise="G7",
        file=_ALLOWANCE,
        old="timeout=max(0.0, ends_at - loop.time())",
        new="timeout=0.0",
        tests=(_OF_THE_DOOR + "test_requests_over_quota_wait_for_room_and_pass",),
    ),
    Mutant(
        name="a share that was handed to a request which is cancelled is lost",
        promise="G7",
        file=_ALLOWANCE,
        old="                self._held += amount\n            raise",
        new="                pass\n            raise",
        tests=(_OF_SHARES + "test_never_more_is_taken_than_was_there_and_nothing_is_lost",),
    ),
    Mutant(
        name="what came back while a portion was drawn is forgotten",
        promise="G7",
        file=_ALLOWANCE,
        old="                drawn = await self._draw(",
        new="                drawn = 0\n                self._held += await self._draw(",
        tests=(_OF_SHARES + "test_never_more_is_taken_than_was_there_and_nothing_is_lost",),
    ),
    Mutant(
        name="any number of requests waits for a quota",
        promise="G7",
        file=_ALLOWANCE,
        old="if len(self._waiting) >= WAITING_MAX:",
        new="if False:",
        tests=(_OF_SHARES + "test_more_than_so_many_do_not_wait",),
    ),
    Mutant(
        name="heartbeats count against a quota",
        promise="G7",
        file=_QUOTAS,
        old='frozenset({"heartbeat"})',
        new="frozenset[str]()",
        tests=(_OF_THE_DOOR + "test_heartbeats_count_against_no_quota",),
    ),
    Mutant(
        name="a quota that was changed holds as it was",
        promise="G7",
        file=_QUOTAS,
        old="if found is None or found[:2] != (limit, day):",
        new="if found is None:",
        tests=(_OF_THE_DOOR + "test_a_quota_that_is_raised_or_taken_away_holds_at_once",),
    ),
    Mutant(
        name="what this door let in since the last count is not counted",
        promise="G7",
        file=_QUOTAS,
        old="                counted.added += amount\n",
        new="",
        tests=(_OF_THE_DOOR + "test_of_many_creates_at_once_as_many_pass_as_there_is_room_for",),
    ),
    Mutant(
        name="a foreign id is looked up before the quota of who asks",
        promise="G7",
        file="kernel/door/appending.py",
        old="        await self._quotas.admit(request)\n",
        new="",
        tests=(_OF_THE_DOOR + "test_every_route_is_counted_after_the_request_is_judged_and_before_its_id_is",),
    ),
    Mutant(
        name="the bytes of a batch are not told to the view",
        promise="G7",
        file=_SHARD,
        old="            log_bytes=log_bytes,\n",
        new="",
        tests=(_OF_THE_DOOR + "test_what_is_kept_in_the_log_bounds_new_work_and_lets_what_runs_end",),
    ),
    Mutant(
        name="a day's counter gives more than its limit",
        promise="G7",
        file="kernel/view/spend.lua",
        old="math.min(wanted, limit - spent)",
        new="wanted",
        tests=(_REDIS + "test_a_day_gives_its_limit_and_no_more",),
    ),
    Mutant(
        name="one tenant may fill all the places of a door",
        promise="G7",
        file=_ADMISSION,
        old="if self._free == 0 or taken >= self._share:",
        new="if self._free == 0:",
        tests=(_OF_PLACES + "test_one_owner_never_has_more_than_its_share_and_the_rest_is_free_for_others",),
    ),
    Mutant(
        name="who waits with many requests has all the next places",
        promise="G7",
        file=_ADMISSION,
        old="            del self._turns[owner]\n            turn",
        new="            turn",
        tests=(_OF_PLACES + "test_those_who_wait_take_turns_however_many_of_one_owner_came_first",),
    ),
    Mutant(
        name="a place that comes to a request which is cancelled is lost",
        promise="G7",
        file=_ADMISSION,
        old="                self.leave(owner)\n            raise",
        new="                pass\n            raise",
        tests=(_OF_PLACES + "test_a_place_that_comes_to_one_who_leaves_goes_to_the_next",),
    ),
)
