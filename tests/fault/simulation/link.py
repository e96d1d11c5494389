"""One machine's ways to the log and to the view: each may be cut for itself, while the others' hold."""

import asyncio


class Link:
    """What is on its way when a way is cut is lost, and nothing passes until it is mended."""

    def __init__(self) -> None:
        self.is_view_cut = False
        self.log_mends = 0
        """How often the way to the log was mended: as often is a consumer made anew."""
        self._is_log_whole = asyncio.Event()
        self._is_log_whole.set()
        self._log_cut: asyncio.Future[None] | None = None

    @property
    def is_log_cut(self) -> bool:
        return not self._is_log_whole.is_set()

    @property
    def log_cut(self) -> asyncio.Future[None]:
        """Done as soon as the way to the log is cut."""
        if self._log_cut is None:
            self._log_cut = asyncio.get_running_loop().create_future()
            if self.is_log_cut:
                self._log_cut.set_result(None)
        return self._log_cut

    async def wait_log(self) -> None:
        await self._is_log_whole.wait()

    def cut_log(self) -> None:
        self._is_log_whole.clear()
        if self._log_cut is not None and not self._log_cut.done():
            self._log_cut.set_result(None)

    def mend(self) -> None:
        """Both ways."""
        self.is_view_cut = False
        if self.is_log_cut:
            self.log_mends += 1
            self._log_cut = None
            self._is_log_whole.set()
