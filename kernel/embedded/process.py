"""One child process that cannot outlive us, with its output in a file."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from kernel.embedded.limits import EmbeddedLimits, EmbeddedServerError

_LEASH = Path(__file__).with_name("leash.py")


class ChildProcess:
    """A running child. It is bound to no event loop: start it under one, stop it under another."""

    def __init__(self, process: subprocess.Popen[bytes], exited: Future[int], limits: EmbeddedLimits) -> None:
        self._process = process
        self._exited = exited
        self._limits = limits

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path,
        keep_open: int,
        limits: EmbeddedLimits,
    ) -> Self:
        """Run `command`, its output appended to `log_path`, with the descriptor `keep_open` left open in it.

        The child is in a session of its own, so that Ctrl-C reaches us alone and we decide the order of the end.
        """
        started: Future[subprocess.Popen[bytes]] = Future()
        exited: Future[int] = Future()
        for future in (started, exited):
            # Marked as running, so that a cancelled wait cannot cancel what everyone else waits for.
            future.set_running_or_notify_cancel()

        def keep() -> None:
            # The system ties the child to the thread that starts it, not to the process: this thread must live as
            # long as the child, so it is the one that waits for it.
            leashed = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), *command]
            try:
                with log_path.open("ab") as log:
                    process = subprocess.Popen(  # noqa: S603 - the program is the wheel's own, named by path
                        leashed,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=dict(environment),
                        start_new_session=True,
                        pass_fds=(keep_open,),
                    )
            except OSError as error:
                started.set_exception(error)
                return
            started.set_result(process)
            exited.set_result(process.wait())

        threading.Thread(target=keep, name=f"keeper of {Path(command[0]).name}", daemon=True).start()
        try:
            process = await asyncio.wrap_future(started)
        except asyncio.CancelledError:
            started.add_done_callback(_kill_started)
            raise
        except OSError as error:
            raise EmbeddedServerError(f"cannot start {command[0]}: {error}") from error
        return cls(process, exited, limits)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; a negative number is the signal that ended it."""
        return self._exited.result() if self._exited.done() else None

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal. One to a process that has ended is dropped."""
        if not self._exited.done():
            self._process.send_signal(signal_number)

    def pause(self) -> None:
        """Stop the process where it is, and return when none of its threads runs any more. SIGCONT lets it go on."""
        self.send(signal.SIGSTOP)
        # A signal that was sent has not arrived: on a busy machine a thread may go on for milliseconds.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    async def terminate(self) -> None:
        """Ask the process to end, and kill it when it has not after the grace. Cancelled, it kills at once."""
        self.send(signal.SIGTERM)
        # A stopped process sees SIGTERM only once it goes on.
        self.send(signal.SIGCONT)
        try:
            async with asyncio.timeout(self._limits.stop_grace_seconds):
                await asyncio.wrap_future(self._exited)
        except TimeoutError:
            await self.kill()
        except asyncio.CancelledError:
            self.send(signal.SIGKILL)
            raise

    async def kill(self) -> None:
        """End the process as a power loss would, and wait until it is gone."""
        self.send(signal.SIGKILL)
        try:
            async with asyncio.timeout(self._limits.kill_deadline_seconds):
                await asyncio.wrap_future(self._exited)
        except TimeoutError as error:
            seconds = self._limits.kill_deadline_seconds
            raise EmbeddedServerError(f"process {self.pid} is still there {seconds} s after SIGKILL") from error


def _kill_started(started: Future[subprocess.Popen[bytes]]) -> None:
    # The start was cancelled while the thread was starting the child: nobody else knows its pid.
    with contextlib.suppress(OSError):
        started.result().kill()
