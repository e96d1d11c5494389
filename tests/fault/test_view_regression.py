"""A view that went back in time, read through a door that had not yet seen how far it had been."""

import asyncio
import shutil

from tests.conformance.harness.answers import accepted
from tests.conformance.harness.kernel import Kernel, connected
from tests.fault.faulty_stack import FaultyStack


async def test_no_door_reads_an_older_view_than_any_other_has_answered_from(stack: FaultyStack, kernel: Kernel) -> None:
    agent = await kernel.agent()
    data = stack.folder / "valkey" / "appendonlydir"
    older = stack.folder / "valkey-older"
    projectors = [process for name, process in stack.processes.items() if name.startswith("projector")]
    async with connected(stack.urls[1], stack.api_key) as elsewhere:
        # The second door asks nothing between the copy and the return of it.
        await asyncio.to_thread(shutil.copytree, data, older)
        lease = await agent.acknowledged()
        for process in projectors:
            process.pause()
        try:
            stack.kill("valkey")
            shutil.rmtree(data)
            older.rename(data)
            await asyncio.to_thread(stack.restart, "valkey")
            reading = asyncio.create_task(elsewhere.get(lease.path))
            done, _ = await asyncio.wait({reading}, timeout=2.0)
        finally:
            for process in projectors:
                process.resume()
        found = accepted(await reading)

    assert not done, "it was answered from the older view"
    assert found["id"] == lease.execution_id
