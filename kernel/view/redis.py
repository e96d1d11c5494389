"""RedisView: the view in Redis or Valkey, all three sides of it over one bounded set of connections."""

from typing import Self

from kernel.view.client import Client
from kernel.view.dispatcher_side import RedisDispatcherView
from kernel.view.door_side import RedisDoorView
from kernel.view.limits import DEFAULT_LIMITS, ViewLimits
from kernel.view.projector_side import RedisProjectorView


class RedisView(RedisProjectorView, RedisDispatcherView, RedisDoorView):
    """Implements `kernel.ports.View`. Safe to share among tasks; every call may be cancelled."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)

    @classmethod
    async def connect(cls, url: str, *, limits: ViewLimits = DEFAULT_LIMITS) -> Self:
        """Return a view whose server answers and does not evict. Raises ViewUnavailable."""
        view = cls(Client(url, limits))
        try:
            await view.check()
        except BaseException:
            await view.close()
            raise
        return view

    async def close(self) -> None:
        """Close the connections. Calls after that raise ViewUnavailable."""
        await self._client.close()
