"""Becomes the program in its arguments, tied to the life of the process that started it.

Run by path and by itself, with `sys.argv[1:]` = parent's pid, program, arguments. It may import the standard library
only. Asking here, after the exec, spares the parent a `preexec_fn`, which may deadlock where there are threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        # SIGKILL and not SIGTERM: a server that a test has stopped would keep a SIGTERM for ever.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent_pid):
        sys.exit("the parent ended before the server started")
    os.execv(program, [program, *arguments])  # noqa: S606 - no shell is wanted; the caller names the program by path


main()
