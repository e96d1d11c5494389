"""Tests of agents: a kernel inside of the test's process, handlers that are re-entered after every step, recordings.

Needs the kernel's distribution: `pip install 'stepwell[testing]'`.
"""

try:
    import kernel.inprocess as _kernel
except ModuleNotFoundError as error:
    raise ImportError("stepwell.testing brings a kernel along: pip install 'stepwell[testing]'") from error

from stepwell.testing.comparing import Divergence
from stepwell.testing.local import LocalKernel, Replay, Run, Running
from stepwell.testing.recording import Recording

del _kernel

__all__ = ["Divergence", "LocalKernel", "Recording", "Replay", "Run", "Running"]
