"""`python -m stepwell.testing record`, as a person runs it, and the test that it writes, as pytest runs it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from stepwell.testing import LocalKernel

AGENT = """from stepwell import tool


@tool
async def look_up(word: str) -> str:
    return word.upper()


async def handle(words: list[str]) -> list[str]:
    return [await look_up(word) for word in words]
"""
CHANGED = AGENT.replace("look_up(word) for", "look_up(word + '!') for")
RUN_SECONDS = 60


async def ran(*words: str, folder: Path, url: str = "") -> tuple[int, str]:
    """Run Python in a folder and return its exit code and what it said."""
    environment = {**os.environ, "REBUNO_URL": url, "REBUNO_API_KEY": "", "PYTHONPATH": str(folder)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(RUN_SECONDS):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.alone
async def test_an_execution_becomes_a_test_that_fails_once_the_handler_does_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(tmp_path)
    handle = __import__("my_agent").handle
    record = ("-m", "stepwell.testing", "record")
    async with LocalKernel() as kernel:
        run = await kernel.run(handle, {"words": ["a", "b"]})
        given = (run.execution.id, "recorded", "--handler", "my_agent:handle")
        code, said = await ran(*record, *given, folder=tmp_path, url=kernel.url)
        assert code == 0, said
        unknown = await ran(*record, "nobody", *given[1:], folder=tmp_path, url=kernel.url)
        bad = await ran(*record, run.execution.id, "recorded", "--handler", "x; y", folder=tmp_path, url=kernel.url)

    name = f"agent_1_{run.execution.id[-8:]}"
    assert sorted(path.name for path in (tmp_path / "recorded").iterdir()) == [f"{name}.json", f"test_{name}.py"]
    assert (unknown[0], bad[0]) == (2, 2)
    assert "Traceback" not in unknown[1] + bad[1]
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "recorded")
    code, said = await ran(*tests, folder=tmp_path)
    assert code == 0, said
    (tmp_path / "my_agent.py").write_text(CHANGED)
    code, said = await ran(*tests, folder=tmp_path)
    assert code == 1, said
    assert "my_agent.py:10 in" in said
    assert 'look_up {"word": "a!"}' in said
