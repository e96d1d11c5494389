"""RedisView counts the connections that the other side ended: what is read afterwards may be older."""

import asyncio

from kernel.embedded import EmbeddedServer
from kernel.view.redis import RedisView
from tests.support.slow_proxy import slow_proxy
from tests.support.wait import wait_until_async


async def test_no_reply_of_a_server_that_was_started_again_comes_before_the_loss_is_counted(
    private_valkey: EmbeddedServer,
) -> None:
    view = await RedisView.connect(private_valkey.url)
    try:
        await asyncio.gather(*(view.check() for _ in range(4)))
        assert view.losses == 0
        await private_valkey.kill()
        await private_valkey.start()
        await view.check()
        assert view.losses > 0
    finally:
        await view.close()


async def test_a_request_that_its_client_gave_up_is_no_loss(private_valkey: EmbeddedServer) -> None:
    async with slow_proxy(private_valkey.port) as proxy:
        view = await RedisView.connect(proxy.url)
        try:
            proxy.hold()
            asked = asyncio.create_task(view.check())
            await wait_until_async(lambda: proxy.held, "a reply to be held back")
            asked.cancel()
            await asyncio.wait((asked,))
            proxy.let_go()
            await view.check()
            assert view.losses == 0
        finally:
            await view.close()
