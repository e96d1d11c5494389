"""Every checker finds what it is for, and leaves alone what is right."""

from collections.abc import Callable, Iterator

import pytest

from tests.tidy import banned, layers, shape, texts
from tests.tidy.sources import ROOT, Finding, Source, parse

Check = Callable[[Source], Iterator[Finding]]


def _is_found(check: Check, path: str, text: str) -> bool:
    return bool(list(check(parse(path, text))))


WRONG_DIRECTIONS = [
    ("schemas/ids.py", "import kernel.domain"),
    ("schemas/ids.py", "import xxhash"),
    ("kernel/__init__.py", "from kernel import door"),
    ("kernel/domain/fold.py", "import nats"),
    ("kernel/domain/fold.py", "from kernel.ports import Log"),
    ("kernel/domain/fold.py", "from ..ports import Log"),
    ("kernel/domain/fold.py", "from .. import ports"),
    ("kernel/domain/fold.py", "import time"),
    ("kernel/domain/fold.py", "def fold():\n    from os import environ"),
    ("kernel/domain/deep/__init__.py", "from ...log import memory"),
    ("kernel/ports.py", "from kernel.log.memory import MemoryLog"),
    ("kernel/log/jetstream.py", "from kernel.view import keys"),
    ("kernel/log/jetstream.py", "from kernel import door"),
    ("kernel/view/redis.py", "import kernel.main"),
    ("kernel/control/fold.py", "from workers import projector"),
    ("kernel/door/app.py", "from workers.projector import Projector"),
    ("kernel/door/app.py", "import redis.asyncio"),
    ("kernel/door/app.py", "from kernel.config import load_settings"),
    ("kernel/door/app.py", "from kernel.main import run"),
    ("kernel/embedded/servers.py", "from kernel.domain import errors"),
    ("kernel/main.py", "from tests.support import wait"),
    ("workers/projector.py", "from kernel.door import app"),
    ("workers/projector.py", "from nats.errors import Error"),
    ("workers/projector.py", "import kernel"),
    ("sdk/src/stepwell/client.py", "from schemas import ids"),
    ("sdk/src/stepwell/client.py", "import kernel.domain.identity"),
    ("examples/agent.py", "import schemas"),
    ("examples/agent.py", "import uvicorn"),
    ("kernel/unheard_of.py", ""),
]

RIGHT_DIRECTIONS = [
    ("schemas/entries.py", "import msgspec\nfrom schemas.ids import Id\nfrom .ids import Id\nimport time"),
    ("kernel/domain/fold.py", "import hashlib, msgspec, xxhash\nfrom schemas import ids\nfrom .lease import x"),
    ("kernel/domain/policy.py", "import re2\nfrom ruamel.yaml import YAML"),
    ("kernel/ports.py", "from kernel.domain.errors import KernelError"),
    ("kernel/log/jetstream.py", "import nats\nfrom kernel.ports import Log\nfrom kernel.log.subjects import x"),
    ("kernel/door/app.py", "import fastapi\nfrom kernel.view.redis import x"),
    ("workers/projector.py", "from kernel.log import memory\nfrom workers import batch"),
    ("workers/__main__.py", "from workers.projector import x\nfrom kernel.settings import Settings\nimport nats"),
    ("kernel/dev.py", "from kernel.embedded import EmbeddedServers\nfrom kernel.door import app\nimport workers.x"),
    ("sdk/src/stepwell/client.py", "import httpx\nfrom stepwell import errors"),
    ("examples/agent.py", "import httpx, hmac, subprocess"),
    ("examples/mounted.py", "import fastapi\nfrom stepwell import Agent"),
    ("bench/submit.py", "import nats\nfrom kernel.domain import identity"),
    ("tests/unit/test_fold.py", "from kernel.domain import fold\nimport examples.agent\nimport hypothesis"),
]


@pytest.mark.parametrize(("path", "text"), WRONG_DIRECTIONS)
def test_an_import_against_the_layers_is_found(path: str, text: str) -> None:
    assert _is_found(layers.import_directions, path, text)


@pytest.mark.parametrize(("path", "text"), RIGHT_DIRECTIONS)
def test_an_import_along_the_layers_is_left_alone(path: str, text: str) -> None:
    assert not list(layers.import_directions(parse(path, text)))


def test_a_function_of_70_lines_is_found_and_one_of_69_is_not() -> None:
    for decorator in ("", "@cache\n"):
        for keyword in ("def", "async def"):
            head = f"{decorator}{keyword} f():\n"
            assert _is_found(shape.function_lengths, "kernel/x.py", head + "    x = 1\n" * 69)
            assert not _is_found(shape.function_lengths, "kernel/x.py", head + "    x = 1\n" * 68)


def test_a_file_of_401_lines_is_found_and_one_of_400_is_not() -> None:
    assert _is_found(shape.file_lengths, "tests/x.py", "x = 1\n" * 401)
    assert not _is_found(shape.file_lengths, "tests/x.py", "x = 1\n" * 400)


def _nested(*heads: str) -> str:
    lines = ["async def f():"]
    for head in heads:
        lines.append("    " * len(lines) + head)
    lines.append("    " * len(lines) + "pass")
    tail = [
        "    " * (depth + 1) + "finally: pass"
        for depth, head in reversed(list(enumerate(heads)))
        if head.startswith("try")
    ]
    return "\n".join(lines + tail)


def test_nesting_beyond_the_limit_is_found() -> None:
    four = ("for a in b:", "while a:", "if a:", "match a:")
    assert not _is_found(shape.nesting, "kernel/x.py", _nested(*four[:3], "for c in d:"))
    assert _is_found(shape.nesting, "kernel/x.py", _nested(*four, "case 1:", "if c:"))
    assert _is_found(shape.nesting, "kernel/x.py", _nested("async for a in b:", "if a:", "try:", "if c:", "if d:"))
    assert not _is_found(shape.nesting, "kernel/x.py", _nested(*four, "case 1:"))
    assert _is_found(shape.nesting, "kernel/domain/x.py", _nested(*four[:3], "if c:"))
    assert not _is_found(shape.nesting, "kernel/domain/x.py", _nested(*four[:3]))
    assert not _is_found(shape.nesting, "kernel/domain/x.py", _nested(*four[:3], "with c:", "async with d:"))


def test_elif_is_no_deeper_than_if_and_an_inner_function_starts_anew() -> None:
    chain = "def f():\n    if a: pass\n" + "    elif a: pass\n" * 9 + "    else: pass\n"
    assert not _is_found(shape.nesting, "kernel/domain/x.py", chain)
    inner = "def f():\n if a:\n  if b:\n   if c:\n    def g():\n     if d:\n      pass\n"
    assert not _is_found(shape.nesting, "kernel/domain/x.py", inner)
    in_handler = "def f():\n try: pass\n except E:\n  if a:\n   if b:\n    if c: pass\n"
    assert _is_found(shape.nesting, "kernel/domain/x.py", in_handler)
    in_else = "def f():\n if a: pass\n else:\n  x = 1\n  if b:\n   if c:\n    if d: pass\n"
    assert _is_found(shape.nesting, "kernel/domain/x.py", in_else)


@pytest.mark.parametrize("path", ["kernel/utils.py", "kernel/view/key_helpers.py", "kernel/common/keys.py"])
def test_a_name_that_says_nothing_is_found(path: str) -> None:
    assert _is_found(shape.module_names, path, "")
    assert not _is_found(shape.module_names, "kernel/view/database_keys.py", "")


BANNED: list[tuple[Check, str, str]] = [
    (banned.sleeps, "tests/unit/test_x.py", "import time\ntime.sleep(1)"),
    (banned.sleeps, "tests/unit/test_x.py", "from asyncio import sleep as nap\nasync def f(): await nap(0)"),
    (banned.sleeps, "tests/support/agents.py", "import asyncio as a\nasync def f(): await a.sleep(1)"),
    (banned.prints, "kernel/door/app.py", "print('x')"),
    (banned.prints, "tests/conftest.py", "print('x')"),
    (banned.clocks_without_zone, "kernel/x.py", "from datetime import datetime\ndatetime.now()"),
    (banned.clocks_without_zone, "kernel/x.py", "import datetime as dt\ndt.datetime.utcnow()"),
    (banned.clocks_without_zone, "kernel/x.py", "import datetime\ndatetime.date.today()"),
    (banned.clocks_without_zone, "tests/x.py", "from datetime import datetime\ndatetime.fromtimestamp(1)"),
    (banned.unsafe_evaluation, "kernel/x.py", "eval('1')"),
    (banned.unsafe_evaluation, "tests/x.py", "exec('1')"),
    (banned.unsafe_evaluation, "kernel/x.py", "from pickle import loads"),
    (banned.unsafe_evaluation, "sdk/x.py", "import shelve"),
    (banned.hidden_imports, "schemas/x.py", "import importlib\nimportlib.import_module('kernel.door')"),
    (banned.hidden_imports, "kernel/x.py", "__import__('workers')"),
    (banned.domain_input, "kernel/domain/x.py", "open('x')"),
    (banned.domain_input, "kernel/domain/x.py", "from uuid import uuid4\nuuid4()"),
    (banned.domain_input, "kernel/domain/x.py", "from datetime import UTC, datetime\ndatetime.now(UTC)"),
    (banned.unseeded_random, "tests/x.py", "import random\nrandom.choice([1])"),
    (banned.unseeded_random, "tests/x.py", "from random import Random\nRandom()"),
    (banned.unseeded_random, "tests/x.py", "import random\nrandom.seed(1)"),
    (banned.mocks, "tests/x.py", "from unittest import mock"),
    (banned.mocks, "tests/x.py", "from unittest.mock import AsyncMock"),
    (banned.silenced_checks, "kernel/x.py", "import os  # noqa: F401"),
    (banned.silenced_checks, "kernel/x.py", "import os  # noqa - it is said why"),
    (banned.silenced_checks, "kernel/x.py", "x = 1  # type: ignore[assignment]"),
    (banned.silenced_checks, "kernel/x.py", "x = 1  # type: ignore - it is said why"),
    (banned.silenced_checks, "kernel/x.py", "x = 1  # pyright: ignore[reportAny]"),
    (banned.silenced_checks, "kernel/x.py", "# pyright: basic"),
    (banned.silenced_checks, "kernel/x.py", "# pyright: reportAny=false"),
    (banned.silenced_checks, "kernel/x.py", "x = 1  # pragma: no cover"),
    (banned.unfinished, "kernel/x.py", "x = 1  # TO" + "DO later"),
]

ALLOWED: list[tuple[Check, str, str]] = [
    (banned.sleeps, "tests/support/wait.py", "import time\ntime.sleep(1)"),
    (banned.sleeps, "workers/x.py", "import asyncio\nasync def f(): await asyncio.sleep(1)"),
    (banned.sleeps, "tests/x.py", "bear.sleep()"),
    (banned.prints, "kernel/cli.py", "print('x')"),
    (banned.prints, "examples/demo.py", "print('x')"),
    (banned.clocks_without_zone, "kernel/x.py", "from datetime import UTC, datetime\ndatetime.now(UTC)"),
    (banned.clocks_without_zone, "kernel/x.py", "import datetime\ndatetime.datetime.fromtimestamp(1, tz=z)"),
    (banned.unsafe_evaluation, "kernel/x.py", "import re\nre.compile('x')\nredis.eval('x')"),
    (banned.hidden_imports, "tests/x.py", "import importlib\nimportlib.import_module('kernel.door')"),
    (banned.domain_input, "kernel/log/x.py", "open('x')"),
    (banned.unseeded_random, "tests/x.py", "import random\nrandom.Random(7).random()"),
    (banned.unseeded_random, "tests/x.py", "def shuffled(random): return random.sample([1], 1)"),
    (banned.mocks, "tests/x.py", "import pytest"),
    (banned.silenced_checks, "kernel/x.py", "import os  # noqa: F401, E402 - the reader looks for it here"),
    (banned.silenced_checks, "kernel/x.py", "x = 1  # type: ignore[assignment]  # the stub is wrong"),
    (banned.silenced_checks, "kernel/x.py", "x = '# noqa'  # about noqa in general"),
    (banned.silenced_checks, "kernel/x.py", "# The driver has no types.\n# pyright: reportAny=false"),
    (banned.silenced_checks, "kernel/x.py", "# pyright: it is told the type here"),
    (banned.unfinished, "kernel/x.py", "x = 1  # all is done"),
]


@pytest.mark.parametrize(("check", "path", "text"), BANNED)
def test_what_is_banned_is_found(check: Check, path: str, text: str) -> None:
    assert _is_found(check, path, text)


@pytest.mark.parametrize(("check", "path", "text"), ALLOWED)
def test_what_is_allowed_is_left_alone(check: Check, path: str, text: str) -> None:
    assert not list(check(parse(path, text)))


REGISTRIES = ["pip install --" + "index-url x", "see https://py" + "pi.org/project", '"resolved": "' + 'https://x"']
PATHS = ["cd /ro" + "ot/x", "'/ho" + "me/me/x'", "at /wo" + "rk/main/x", f"in {ROOT}" + "/kernel"]


@pytest.mark.parametrize("line", REGISTRIES)
def test_the_address_of_a_registry_is_found(line: str) -> None:
    assert [finding.line for finding in texts.registry_addresses("x.md", f"\n{line}\n")] == [2]
    assert not list(texts.registry_addresses("x.md", "pip install -r requirements.lock\nhttps://example.org/simpler"))


@pytest.mark.parametrize("line", PATHS)
def test_a_path_of_one_machine_is_found(line: str) -> None:
    assert 2 in {finding.line for finding in texts.machine_paths("x.md", f"\n{line}\n")}
    assert not list(texts.machine_paths("x.md", "/var/lib/stepwell /d/<token>/v1/ $HOME/x https://example.org/home/x"))


@pytest.mark.parametrize("line", ["redis", "redis>=8", "redis @ file:x", "-r other", "redis==8.1.0 --hash=sha256:00"])
def test_a_line_of_the_lock_that_is_not_a_pin_is_found(line: str) -> None:
    assert [finding.line for finding in texts.unpinned_lines("x.lock", f"# why\nredis==8.1.0\n{line}\n")] == [3]


def test_a_requirement_that_the_lock_does_not_meet_is_found() -> None:
    lock = "# note\nRuamel.Yaml==0.19.1\nredis==8.1.0\n"
    assert not list(texts.unlocked_requirements(["ruamel-yaml>=0.19", "redis[hiredis]>=8,<9"], lock))
    assert list(texts.unlocked_requirements(["redis>=9"], lock))
    assert list(texts.unlocked_requirements(["msgspec"], lock))
