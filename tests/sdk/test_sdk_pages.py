"""The pages about the library: every Python block on them runs, and says what the page says that it says.

A comment under a block holds how it is run; a block of text after it is what is then printed, or how it ends.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import httpx
import msgspec
import pytest

import stepwell
from kernel import cli
from kernel.embedded.ports import free_port
from kernel.inprocess import DEFAULTS
from kernel.manifest import read_manifest
from stepwell import Agent, Client
from stepwell.testing import Divergence, LocalKernel
from stepwell.testing import __main__ as recorder
from tests.sdk.conftest import serving
from tests.support.openai_agents import without_tracing
from tests.support.openai_wire import Says
from tests.support.provider import calls, providing, turns
from tests.support.stack import ROOT

PAGES = [*sorted((ROOT / "docs/sdk").glob("*.md")), ROOT / "sdk/README.md"]
SECRET = "the secret of the pages"
PYTEST_SECONDS_MAX = 120

pytestmark = pytest.mark.usefixtures(without_tracing.__name__)

_FENCE = re.compile(
    r"^```(?P<language>\w+)(?: (?P<name>\S+))?\n(?P<code>.*?)^```\n(?:<!-- run (?P<options>{.*?}) -->\n)?",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^    (\S.*)$", re.MULTILINE)
_QUOTED = re.compile(r"(?<![*\w])\*([^*]{4,})\*(?!\*)")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")

Kind = Literal["tests", "handler", "program"]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a block is run."""

    given: Any = None
    policy: str = ""
    output: Any = None
    answers: list[str | tuple[str, Any]] = []
    """What a model says, turn by turn: a text, or a tool that it calls with these arguments."""
    granted: bool = False
    """Whether a person grants what the handler asks for."""
    dies_when: str = ""
    """The event of the block at which its process seems to die."""
    agent: str = ""
    """The agent that a program speaks to: the handler before it."""
    fails: bool = False
    """Whether the tests of the block fail."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One Python block. `seen` is the text after it."""

    page: Path
    name: str
    code: str
    options: Options
    seen: str = ""

    @property
    def kind(self) -> Kind:
        names = re.findall(r"^(?:async )?def (\w+)", self.code, re.MULTILINE)
        if any(name.startswith("test_") for name in names):
            return "tests"
        assert "handle" in names or "main" in names, f"{self} does nothing"
        return "handler" if "handle" in names else "program"

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.name}"


def blocks_of(page: Path) -> list[Block]:
    """Return the Python blocks of a page in their order."""
    blocks: list[Block] = []
    for fence in _FENCE.finditer(page.read_text("utf-8")):
        match fence["language"]:
            case "python":
                name = fence["name"] or f"block_{len(blocks) + 1}.py"
                options = msgspec.json.decode(fence["options"] or "{}", type=Options)
                blocks.append(Block(page=page, name=name, code=fence["code"], options=options))
            case "text":
                assert not blocks[-1].seen, f"{blocks[-1]} has two texts"
                blocks[-1] = msgspec.structs.replace(blocks[-1], seen=fence["code"])
            case _:
                assert not fence["options"], f"a block of {page} is not Python, and would be run"
    return blocks


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def blocks(kind: Kind) -> Any:
    return pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == kind], ids=str)


def is_said(seen: str, told: str) -> bool:
    """Whether what a page shows was told; `…` stands for what is another thing every time."""
    pattern = r"\n".join(".+".join(map(re.escape, line.split("…"))) for line in seen.strip().splitlines())
    return re.search(pattern, told) is not None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a page's blocks are files, as its reader would have them."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(page: Path, folder: Path) -> list[Block]:
    for block in blocks_of(page):
        (folder / block.name).write_text(block.code, "utf-8")
    return blocks_of(page)


def imported(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    write(block.page, folder)
    name = f"page_{Path(block.name).stem}"
    spec = importlib.util.spec_from_file_location(name, folder / block.name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their annotations up there.
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- Python


@blocks("handler")
async def test_a_handler_on_a_page_does_what_the_page_says(
    block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = block.options
    script = turns(*(Says(each) if isinstance(each, str) else calls(each) for each in options.answers))
    async with LocalKernel() as kernel, providing(script) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-pages")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        module = imported(block, folder, monkeypatch)
        replay = "needed" if options.dies_when else "always"
        running = await kernel.start(module.handle, options.given, policy=options.policy, replay=replay)
        if options.granted:
            await kernel.client.grant_approval((await running.approval()).id)
        if options.dies_when:
            await getattr(module, options.dies_when).wait()
            await running.interrupt()
        try:
            run = await running.wait()
        except Divergence as divergence:
            told, output = str(divergence), None
        else:
            told, output = run.failure_reason, run.output

    provider.assert_asked_once_each(len(options.answers))
    assert output == options.output, told
    assert told.strip() if block.seen else not told, "a page shows how its handlers fail"
    assert is_said(block.seen, told), told
    assert len(told.strip().splitlines()) == len(block.seen.strip().splitlines())


@blocks("program")
async def test_a_program_on_a_page_prints_what_the_page_says(
    block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = blocks_of(block.page)
    handlers = [each for each in page[: page.index(block)] if each.kind == "handler"]
    handle = imported(handlers[-1], folder, monkeypatch).handle
    program = imported(block, folder, monkeypatch)
    port = free_port()
    async with LocalKernel() as kernel, httpx.AsyncClient(base_url=kernel.url, trust_env=False) as http:
        agent = Agent(block.options.agent, secret=SECRET, base_url=kernel.url)
        agent.bind(handle)
        url = f"http://127.0.0.1:{port}/webhook"
        await http.post("/v0/agents", json={"id": agent.agent_id, "webhook_url": url, "secret": SECRET})
        monkeypatch.setenv("REBUNO_URL", kernel.url)
        async with serving(agent.app, port):
            await program.main()

    assert capsys.readouterr().out == block.seen != ""


RUNS = sorted({(block.page, block.options.fails) for block in BLOCKS if block.kind == "tests"})


@pytest.mark.parametrize(("page", "fails"), RUNS, ids=lambda value: getattr(value, "name", str(value)))
def test_the_tests_on_a_page_run(page: Path, fails: bool, folder: Path) -> None:
    tests = [block for block in write(page, folder) if block.kind == "tests" and block.options.fails is fails]
    # No plugin but the one that the page names: each takes its time to load.
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_asyncio.plugin"}
    environment = os.environ | plain | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *(block.name for block in tests)]

    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PYTEST_SECONDS_MAX, check=False
    )

    assert done.returncode == int(fails), done.stdout + done.stderr
    for block in tests:
        assert is_said(unmarked(block.seen), unmarked(done.stdout)), done.stdout


def unmarked(text: str) -> str:
    """Return the text without the margin that pytest gives to what was raised."""
    return re.sub(r"^(E )? *", "", text, flags=re.MULTILINE)


# ---------------------------------------------------------------- the rest of a page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_leads_to_exists(page: Path) -> None:
    links = _LINK.findall(page.read_text("utf-8"))
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_what_a_page_quotes_is_in_the_library_or_on_the_page() -> None:
    library = "".join(path.read_text("utf-8") for path in (ROOT / "sdk/src/stepwell").rglob("*.py"))
    for page in PAGES:
        code = library + "".join(block.code for block in blocks_of(page))
        quoted = [re.sub(r"\s+", " ", text) for text in _QUOTED.findall(_FENCE.sub("", page.read_text("utf-8")))]
        assert [text for text in quoted if text not in code] == []


def test_what_a_page_says_is_not_here_is_not_here() -> None:
    page = (ROOT / "docs/sdk/move-from-rebuno.md").read_text("utf-8")
    lines = re.findall(r"^Not in this kernel yet.*$", page, re.MULTILINE)
    names = {name for line in lines for name in re.findall(r"`(\w+)`", line)}
    assert "fork" in names
    assert [name for name in names if name in stepwell.__all__ or hasattr(Client, name)] == []


def test_the_pages_can_be_reached() -> None:
    assert "docs/sdk/README.md" in _LINK.findall((ROOT / "README.md").read_text("utf-8"))
    assert "../docs/sdk/README.md" in _LINK.findall((ROOT / "sdk/README.md").read_text("utf-8"))
    start = (ROOT / "docs/sdk/README.md").read_text("utf-8")
    assert {page.name for page in (ROOT / "docs/sdk").glob("*.md")} - {"README.md"} <= set(_LINK.findall(start))


def commands() -> list[tuple[Path, str]]:
    return [(page, line) for page in PAGES for line in _COMMAND.findall(outside_fences(page))]


def outside_fences(page: Path) -> str:
    return _FENCE.sub("", page.read_text("utf-8"))


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: getattr(value, "name", value))
def test_a_command_on_a_page_exists(page: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    match shlex.split(line):
        case ["stepwell", command, *rest]:
            told = help_of(cli.main, [command], capsys)
        case ["python", "-m", "stepwell.testing", command, *rest]:
            told = help_of(recorder.main, [command], capsys)
        case ["python", script]:
            told, rest = script, []
            assert script in [block.name for block in blocks_of(page)]
        case ["pip", "install", *rest]:
            told = "\n".join(rest)
            assert "testing = [" in (ROOT / "sdk/pyproject.toml").read_text("utf-8")
        case _:
            pytest.fail(f"nobody knows whether this can be run: {line}")
    assert {word for word in rest if word.startswith("--")} <= set(re.findall(r"--[\w-]+", told))


def help_of(main: Any, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


async def test_the_manifest_on_a_page_can_be_loaded(tmp_path: Path) -> None:
    page = (ROOT / "docs/sdk/write-an-agent.md").read_text("utf-8")
    (tmp_path / "stepwell.yaml").write_text(next(f["code"] for f in _FENCE.finditer(page) if f["language"] == "yaml"))

    agents = await read_manifest(tmp_path / "stepwell.yaml", {"REBUNO_AGENT_SECRET": SECRET}, DEFAULTS)

    assert [agent.id for agent in agents] == ["researcher"]


def test_every_block_is_looked_at() -> None:
    assert sum(page.read_text("utf-8").count("```python") for page in PAGES) == len(BLOCKS) >= 20
