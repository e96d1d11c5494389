"""What the log acknowledged was on the disk before: proved from a trace of the system calls of the real server.

The very same proof is held against a server that flushes every two minutes, and refuses it.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kernel.embedded import EmbeddedServer, embedded_nats
from kernel.embedded.binaries import configuration_file
from kernel.log.jetstream import JetStreamLog
from kernel.log.naming import stream_name
from kernel.ports import Outgoing
from schemas.ids import new_uuid7
from tests.fault.system_calls import TEXT_BYTES_MAX, TRACED, Place, acknowledgements, read_calls, refuted

SHARDS = 8
LONE = 40
AT_ONCE = 240
CONTROL = 8
SIZES = (2, 300, 5_000, 60_000)
SECONDS = 20.0
CONTROL_STREAM = "STEPWELL_CONTROL"
ALWAYS = "sync_interval: always"
SELDOM = 'sync_interval: "2m"'
HOW_TO_TRACE = "install strace (apt-get install strace) and allow ptrace (in a container: --cap-add SYS_PTRACE)"


@asynccontextmanager
async def traced(server: EmbeddedServer, trace: Path) -> AsyncIterator[None]:
    """Trace a running server with all its threads. Where that cannot be done, the test is skipped."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip(HOW_TO_TRACE)
    arguments = ["-f", "-y", "-s", str(TEXT_BYTES_MAX), "-e", f"trace={TRACED}", "-o", str(trace)]
    tracer = await asyncio.create_subprocess_exec(
        program, *arguments, "-p", str(server.pid), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert tracer.stderr is not None
        async with asyncio.timeout(SECONDS):
            said = (await tracer.stderr.readline()).decode()
        if "attached" not in said:
            pytest.skip(f"{HOW_TO_TRACE}; strace says: {said.strip()}")
        yield
    finally:
        if tracer.returncode is None:
            tracer.terminate()
        await tracer.wait()


async def append_all(log: JetStreamLog) -> dict[Place, str]:
    """Append to every shard, one by one and many at once, and to the control stream. Return ids by their places."""
    appended: dict[Place, str] = {}

    async def append(number: int) -> None:
        outgoing = Outgoing(
            shard=number % SHARDS,
            tenant="acme",
            execution_id=new_uuid7(),
            entry_id=new_uuid7(),
            payload=b"x" * SIZES[number // SHARDS % len(SIZES)],
            reply_to="",
        )
        told = await log.append(outgoing, timeout_seconds=SECONDS)
        appended[stream_name(outgoing.shard), told.seq] = outgoing.entry_id

    for number in range(LONE):
        await append(number)
    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(append(number))
    for _ in range(CONTROL):
        entry_id = new_uuid7()
        seq = await log.append_control(entry_id=entry_id, payload=b"control", timeout_seconds=SECONDS)
        appended[CONTROL_STREAM, seq] = entry_id
    assert len(appended) == LONE + AT_ONCE + CONTROL
    return appended


async def traced_appends(server: EmbeddedServer, folder: Path) -> tuple[str, dict[Place, str]]:
    """Append under the tracer. Return the trace and what was appended."""
    trace = folder / "system-calls.txt"
    async with traced(server, trace):
        log = await JetStreamLog.connect(server.url, shards=SHARDS, name="traced")
        try:
            await log.ensure_streams()
            appended = await append_all(log)
        finally:
            await log.close()
    return trace.read_text(errors="replace"), appended


async def test_every_acknowledged_append_was_flushed_before_its_acknowledgement(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path / "nats") as server:
        text, appended = await traced_appends(server, tmp_path)

    calls = read_calls(text)
    assert {place for place, _ in acknowledgements(calls)} == appended.keys()
    assert refuted(calls, appended) == []


async def test_an_append_is_flushed_as_well_by_a_server_that_came_back_after_a_kill(tmp_path: Path) -> None:
    """Its files are opened anew, in another way than when they were made."""
    async with embedded_nats(tmp_path / "nats") as server:
        log = await JetStreamLog.connect(server.url, shards=SHARDS, name="before")
        try:
            await log.ensure_streams()
            await append_all(log)
        finally:
            await log.close()
        await server.kill()
        await server.start()

        text, appended = await traced_appends(server, tmp_path)

    assert refuted(read_calls(text), appended) == []


async def test_the_proof_refuses_a_server_that_flushes_later(tmp_path: Path) -> None:
    shipped = configuration_file("nats.conf").read_text()
    assert shipped.count(ALWAYS) == 1
    seldom = tmp_path / "seldom.conf"
    seldom.write_text(shipped.replace(ALWAYS, SELDOM))
    async with embedded_nats(tmp_path / "nats", arguments=["-c", str(seldom)]) as server:
        text, appended = await traced_appends(server, tmp_path)

    calls = read_calls(text)
    assert {place for place, _ in acknowledgements(calls)} == appended.keys()
    # Its very files: nothing but the flush is missing, or the write as well, where it was put off too.
    assert {each.place for each in refuted(calls, appended)} == appended.keys()
    assert {each.reason for each in refuted(calls, appended)} <= {
        "the entry was not written before",
        "the entry was written and not flushed before",
    }


# ---------------------------------------------------------------- the proof itself

_FILE = "/data/streams/STEPWELL_0/msgs/1.blk"
_OPEN = f'7 openat(AT_FDCWD</>, "{_FILE}", O_RDWR|O_CLOEXEC, 0600) = 9<{_FILE}>'
_WRITE = f'7 pwrite64(9<{_FILE}>, "Nats-Msg-Id: the-entry\\r\\n", 25, 0) = 25'
_FLUSH = f"7 fsync(9<{_FILE}>) = 0"
_ANSWER = (
    r'8 writev(5<socket:[1]>, [{iov_base="MSG x 1\r\n{\"stream\":\"STEPWELL_0\",\"seq\":1}", iov_len=45}], 1) = 45'
)
_SPLIT = _ANSWER.replace("PWELL", '", iov_len=20}, {iov_base="PWELL')
_APPENDED = {("STEPWELL_0", 1): "the-entry"}


def _halves(line: str) -> tuple[str, str]:
    """The line of a call that another thread interrupts, and the line of its end."""
    thread, _, rest = line.partition(" ")
    begun, _, result = rest.rpartition(") = ")
    return f"{thread} {begun} <unfinished ...>", f"{thread} <... {rest.partition('(')[0]} resumed>) = {result}"


@pytest.mark.parametrize(
    "lines",
    [
        (_OPEN, _WRITE, _FLUSH, _ANSWER),
        (_OPEN, _WRITE, _FLUSH, _SPLIT),
        (_OPEN, _WRITE, _FLUSH.replace("fsync", "fdatasync"), _ANSWER),
        (_OPEN.replace("O_CLOEXEC", "O_DSYNC|O_CLOEXEC"), _WRITE, _ANSWER),
        (_OPEN, _WRITE, *_halves(_FLUSH), _ANSWER),
        (_OPEN, *_halves(_WRITE), _FLUSH, *_halves(_ANSWER)),
    ],
)
def test_the_proof_takes_a_flush_between_the_write_and_the_answer(lines: tuple[str, ...]) -> None:
    assert refuted(read_calls("\n".join(lines)), _APPENDED) == []


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((_OPEN, _WRITE, _ANSWER), "written and not flushed"),
        ((_OPEN, _WRITE, _ANSWER, _FLUSH), "written and not flushed"),
        ((_OPEN, _FLUSH, _WRITE, _ANSWER), "written and not flushed"),
        ((_OPEN, _WRITE, _halves(_FLUSH)[0], _ANSWER, _halves(_FLUSH)[1]), "written and not flushed"),
        ((_OPEN, _halves(_WRITE)[0], _FLUSH.replace("7 ", "6 "), _halves(_WRITE)[1], _ANSWER), "not flushed"),
        ((_OPEN, _WRITE, _FLUSH.replace("= 0", "= -1 EIO (Input/output error)"), _ANSWER), "not flushed"),
        ((_OPEN, _WRITE, _FLUSH.replace("1.blk", "2.blk"), _ANSWER), "not flushed"),
        ((_OPEN, _WRITE, _FLUSH.replace("fsync", "sync_file_range"), _ANSWER), "not flushed"),
        ((_OPEN, _WRITE.replace("= 25", "= 24"), _FLUSH, _ANSWER), "was not written"),
        ((_OPEN, _WRITE.replace("_0", "_1"), _FLUSH.replace("_0", "_1"), _ANSWER), "was not written"),
        ((_OPEN, _FLUSH, _ANSWER, _WRITE), "was not written"),
        ((_OPEN, _WRITE, _FLUSH), "no acknowledgement was seen"),
        ((_OPEN, _WRITE, _FLUSH, _ANSWER, _ANSWER.replace("_0", "_1")), "nobody sent"),
    ],
)
def test_the_proof_refuses_everything_less(lines: tuple[str, ...], reason: str) -> None:
    (finding,) = refuted(read_calls("\n".join(lines)), _APPENDED)

    assert reason in finding.reason
