"""A door that may have missed a change of keys, agents or policies lets nobody in until it knows."""

from tests.integration.test_door_keys import make_key
from tests.support.door import rig_in_memory
from tests.support.wait import wait_until_async

BUDGET_SECONDS = 0.5


async def test_a_door_that_may_have_missed_a_revocation_answers_neither_keys_nor_signatures() -> None:
    async with rig_in_memory(budget_seconds=BUDGET_SECONDS) as rig:
        await rig.register()
        run = await rig.started()
        key = (await make_key(rig, "agents:admin"))["key"]
        assert (await rig.call("GET", "/v0/agents", key=key)).status_code == 200

        # When the stream of changes cannot be read. The agents are in memory: nothing else is in the way of an answer.
        rig.memory_log.go_offline()
        await wait_until_async(lambda: not rig.control.is_level, "the door to know that it may have missed a change")
        by_key = await rig.call("GET", "/v0/agents", key=key)
        by_nobody = await rig.call("GET", "/v0/agents", key="sw_nobodys")
        by_signature = await run.send("PUT", "/v0/agents/agent/metadata", {"description": "d"})
        rig.memory_log.come_back()

        assert {each.status_code for each in (by_key, by_nobody, by_signature)} == {503}
        await wait_until_async(lambda: rig.control.is_level, "the door to be level again")
        assert (await rig.call("GET", "/v0/agents", key=key)).status_code == 200
