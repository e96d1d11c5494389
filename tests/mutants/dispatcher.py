"""Breaks of the dispatcher: who may deliver, when, how often, and whose turn it is."""

from tests.mutants.mutant import Mutant

_CLAIMS = "workers/dispatching/claims.py"
_DELIVERY = "workers/dispatching/delivery.py"
_SLOTS = "workers/dispatching/slots.py"
_TAKE_SLOT = "kernel/view/take_slot.lua"
_TURNS = "workers/dispatching/turns.py"
_WEBHOOK = "workers/webhook.py"

_OF_CLAIMS = "tests/integration/test_dispatcher_claims.py::"
_OF_DELIVERIES = "tests/integration/test_dispatcher_deliveries.py::"
_OF_SLOTS = "tests/integration/test_dispatcher_slots.py::"
_OF_THE_VIEW = "tests/contract/test_view_contract.py::TestRedisView::"
_OF_ANSWERS = "tests/integration/test_webhook_answers.py::"
_OF_TURNS = "tests/unit/test_dispatch_turns.py::"

OF_THE_DISPATCHER = (
    Mutant(
        name="a delivery without a slot is back before its turn",
        promise="D6",
        file=_TURNS,
        old="return math.ceil(seconds * 1000) + 1",
        new="return int(seconds * 1000)",
        tests=(_OF_TURNS + "test_what_the_view_is_told_to_give_back_never_comes_before_its_time",),
    ),
    Mutant(
        name="the acceptance of an earlier claim is taken for that of a later one",
        promise="G3",
        file=_CLAIMS,
        old="is_mine = answered.result() == entry.claimed_by",
        new='is_mine = answered.result() != ""',
        tests=(_OF_CLAIMS + "test_the_acceptance_of_an_earlier_claim_is_not_taken_for_that_of_a_later_one",),
    ),
    Mutant(
        name="a webhook is sent although its claim was ignored",
        promise="G3",
        file=_CLAIMS,
        old="is_mine = answered.result() == entry.claimed_by",
        new="is_mine = True",
        tests=(_OF_CLAIMS + "test_a_claim_on_a_cancelled_execution_is_not_given",),
    ),
    Mutant(
        name="the claim of another process is taken for one's own",
        promise="G3",
        file=_CLAIMS,
        old="return is_open and header.claimed_by == entry.claimed_by and header.lease == entry.lease",
        new="return is_open and header.lease == entry.lease",
        tests=(_OF_CLAIMS + "test_a_claim_belongs_to_the_one_whose_entry_came_first",),
    ),
    Mutant(
        name="a webhook is sent later than five seconds after its claim",
        promise="D6",
        file=_DELIVERY,
        old="if time.monotonic() - claim.since >= CLAIM_SECONDS:",
        new="if False:",
        tests=(_OF_CLAIMS + "test_a_claim_that_is_too_old_is_left_to_its_lease",),
    ),
    Mutant(
        name="a retry is sent under the number of the attempt before",
        promise="D6",
        file=_DELIVERY,
        old="dispatch_attempt=claim.lease.attempt,",
        new="dispatch_attempt=max(1, item.header.dispatch.attempt),",
        tests=(_OF_DELIVERIES + "test_a_failure_is_told_and_the_next_attempt_acknowledged",),
    ),
    Mutant(
        name="a webhook follows a redirect",
        promise="G7",
        file=_WEBHOOK,
        old="        return self._outcome(head)\n",
        new=(
            "        places = [value.decode() for name, value in head.headers if name == b'location']\n"
            "        if 300 <= head.status_code <= 399 and places:\n"
            "            return await self.post(msgspec.structs.replace(request, url=places[0]))\n"
            "        return self._outcome(head)\n"
        ),
        tests=(_OF_ANSWERS + "test_a_redirect_is_a_failure_and_its_target_is_never_called",),
    ),
    Mutant(
        name="a redirect counts as delivered",
        promise="D6",
        file=_WEBHOOK,
        old="if 200 <= head.status_code <= 299:",
        new="if 200 <= head.status_code <= 399:",
        tests=(_OF_ANSWERS + "test_a_redirect_is_a_failure_and_its_target_is_never_called",),
    ),
    Mutant(
        name="one tenant is served until nothing of it waits",
        promise="G7",
        file=_TURNS,
        old="self._waiting.move_to_end(tenant)",
        new="pass",
        tests=(_OF_TURNS + "test_work_is_taken_in_turn_across_tenants_then_agents",),
    ),
    Mutant(
        name="one tenant may have every place",
        promise="G7",
        file=_TURNS,
        old="is_full = self._open_of_tenant[tenant] >= max(1, free * TENANT_SHARE)",
        new="is_full = False",
        tests=(_OF_TURNS + "test_one_tenant_alone_leaves_places_to_the_others",),
    ),
    Mutant(
        name="a slot is given whatever the limit",
        promise="D7",
        file=_TAKE_SLOT,
        old="redis.call('ZCARD', slots) >= tonumber(ARGV[2])",
        new="false",
        tests=(_OF_THE_VIEW + "test_as_many_hold_a_slot_as_the_limit_says_and_no_more",),
    ),
    Mutant(
        name="slots that ended are not dropped",
        promise="D7",
        file=_TAKE_SLOT,
        old="redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)\n",
        new="",
        tests=(_OF_THE_VIEW + "test_each_slot_ends_at_its_own_time",),
    ),
    Mutant(
        name="a slot that is held for a short time ends the others with it",
        promise="D7",
        file=_TAKE_SLOT,
        old="if redis.call('PTTL', slots) < hold_ms then",
        new="if true then",
        tests=(_OF_THE_VIEW + "test_a_short_hold_ends_no_longer_one_with_it",),
    ),
    Mutant(
        name="a webhook is sent although its agent has no slot free",
        promise="D7",
        file=_SLOTS,
        old="return slot if await slot.take() else None",
        new="return slot if await slot.take() else slot",
        tests=(_OF_SLOTS + "test_two_dispatchers_together_have_no_more_calls_open_than_the_agent_takes",),
    ),
    Mutant(
        name="a slot is not given back",
        promise="D7",
        file=_SLOTS,
        old="await self._view.give_slot(self._item.tenant, self._item.agent_id, holder=self._holder)",
        new="pass",
        tests=(_OF_SLOTS + "test_a_slot_is_free_again_when_its_call_is_over",),
    ),
    Mutant(
        name="the slot of a call that was cut off is not given back",
        promise="D7",
        file=_SLOTS,
        old="        self.give()\n",
        new="",
        tests=(_OF_SLOTS + "test_a_slot_is_free_again_when_its_dispatcher_is_cancelled",),
    ),
    Mutant(
        name="a webhook is sent although the view cannot count it",
        promise="D7",
        file=_SLOTS,
        old="            async with slot:\n                raise\n",
        new="            return slot\n",
        tests=(_OF_SLOTS + "test_without_the_view_nothing_is_sent_and_nothing_is_claimed",),
    ),
    Mutant(
        name="a call begins on a slot that may end before it",
        promise="D7",
        file=_SLOTS,
        old="if time.monotonic() - self._asked_at < FRESH_SECONDS:",
        new="if True:",
        tests=(_OF_SLOTS + "test_a_slot_that_grew_old_and_cannot_be_kept_sends_nothing",),
    ),
    Mutant(
        name="the outcome of a delivery waits until its slot was given back",
        promise="D7",
        file=_DELIVERY,
        old="        slot.give()\n",
        new="        await slot.__aexit__()\n",
        tests=(_OF_SLOTS + "test_the_outcome_is_recorded_while_the_slot_is_still_being_given_back",),
    ),
    Mutant(
        name="everything that waits for a busy agent asks for a slot all the time",
        promise="D7",
        file=_TURNS,
        old="self._waits[owner] = now + self.LAST_SECONDS, most",
        new="pass",
        tests=(_OF_SLOTS + "test_a_backlog_without_a_slot_asks_a_few_times_a_second",),
    ),
)
