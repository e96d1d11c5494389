"""Tools of an MCP server as steps. A call is sent once: where no answer comes, its outcome is told as unknown.

The list of tools is a step as well: a handler that runs again has the tools that it had first, whatever the server
offers by then, and a server is connected to only when something is asked of it that is not recorded.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

import msgspec
from mcp import Client, ClientSession, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    CallToolResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from stepwell.context import current
from stepwell.errors import ToolError
from stepwell.kernel import Idempotency
from stepwell.tools import wrap_tool

TIMEOUT_SECONDS = 60.0
CONNECT_SECONDS = 30.0
CLOSE_SECONDS_MAX = 10.0
PAGES_MAX = 100
"""Of one list of tools."""

Transport = AbstractAsyncContextManager[tuple[Any, Any]]
Server = StdioServerParameters | str | Callable[[], Transport] | ClientSession
"""How to start a server, its URL, what opens a transport to it, or a session with it."""
Tools = dict[str, Callable[..., Any]]


@asynccontextmanager
async def mcp_tools(
    server: Server,
    *,
    prefix: str = "",
    idempotency: Idempotency | Mapping[str, Idempotency] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    connect_seconds: float = CONNECT_SECONDS,
) -> AsyncGenerator[Tools]:
    """Yield the tools of a server by their names, each a function of keywords whose calls are steps.

        async with mcp_tools(StdioServerParameters(command="notes-server")) as tools:
            await tools["append"](line="hello")

    `prefix` stands before the names, also in policies; servers that are used beside each other need different ones.
    A tool is `at_most_once` unless `idempotency`, for all tools or by the server's name of one, or the server's own
    annotations (read-only, idempotent) say otherwise. The result is the structured content, else the text, else the
    list of the contents. `tool_schema` tells a model of a tool.

    An error of the tool raises ToolError. So does an answer that has not come within `timeout_seconds`, or before the
    link broke: its message begins with `outcome_unknown` unless the tool is safe to retry. No call is ever sent again;
    after a broken link the next call connects anew, except with a session of the caller's own.
    """
    context = current("mcp_tools()")
    links = _Links(server, timeout_seconds=timeout_seconds, connect_seconds=connect_seconds)
    try:
        listed = await context.enter(
            lambda: context.invoke_tool("mcp.list_tools", {"prefix": prefix}, run=links.list_tools, kind="local")
        )
        offers = msgspec.convert(listed, list[_Offer])
        yield {prefix + offer.name: _tool(links, prefix + offer.name, offer, idempotency) for offer in offers}
    finally:
        # Steps run on the handler's loop, wherever they are made: so their links are there.
        await context.enter(links.close)


class _Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server describes it."""

    name: str
    description: str
    parameters: dict[str, Any]
    is_repeatable: bool


def _tool(
    links: "_Links", name: str, offer: _Offer, idempotency: Idempotency | Mapping[str, Idempotency] | None
) -> Callable[..., Any]:
    chosen = idempotency.get(offer.name) if isinstance(idempotency, Mapping) else idempotency
    mode: Idempotency = chosen or ("safe_to_retry" if offer.is_repeatable else "at_most_once")

    async def call(arguments: dict[str, Any]) -> Any:
        return await links.call(offer.name, arguments, may_repeat=mode == "safe_to_retry")

    return wrap_tool(name, call, description=offer.description, args_schema=offer.parameters, idempotency=mode)


# ---------------------------------------------------------------- links


class _Links:
    """The connections to one server: one at a time, and the next one after a break."""

    def __init__(self, server: Server, *, timeout_seconds: float, connect_seconds: float) -> None:
        self._server = server
        self._timeout_seconds = timeout_seconds
        self._connect_seconds = connect_seconds
        self._opening = asyncio.Lock()
        self._link: _Link | None = None
        self._all: set[_Link] = set()

    async def list_tools(self) -> list[_Offer]:
        link = await self._linked()
        return [_offer(tool) for tool in link.tools]

    async def call(self, tool: str, arguments: dict[str, Any], *, may_repeat: bool) -> Any:
        """Send a call, once, and return its result. Raises ToolError."""
        link = await self._linked()
        link.calls += 1
        try:
            # The time covers the sending as well: a server that reads nothing is as silent as one that says nothing.
            async with asyncio.timeout(self._timeout_seconds):
                result = await link.session.call_tool(tool, arguments)
        except TimeoutError as error:
            why = f"{tool} has not answered within {self._timeout_seconds:g} s"
            raise ToolError(_unanswered(why, may_repeat=may_repeat), tool) from error
        except MCPError as error:
            if error.code == INVALID_REQUEST:
                # What a server says that knows the session no more: the next call has one of its own.
                link.is_over = True
            if error.code == CONNECTION_CLOSED:
                why = f"the link to the server broke before {tool} answered"
                raise ToolError(_unanswered(why, may_repeat=may_repeat), tool) from error
            raise ToolError(error.message, tool) from error
        finally:
            link.calls -= 1
            link.end_if_idle()
        return _value(tool, result)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._all))

    async def _linked(self) -> "_Link":
        """Return a link that is up, opened now if there is none. Raises ConnectionError."""
        async with self._opening:
            if self._link is None or self._link.is_over:
                if self._link is not None:
                    self._link.end_if_idle()
                self._all = {link for link in self._all if not link.has_ended}
                self._link = _Link(self._server)
                self._all.add(self._link)
            # Whoever began to open it may have been cancelled meanwhile.
            await self._link.up(self._connect_seconds)
            return self._link


class _Link:
    """One session with a server. A task of its own opens and closes it, as the transports demand."""

    def __init__(self, server: Server) -> None:
        self.session: ClientSession
        self.tools: list[Tool]
        self.is_over = False
        """Whether nothing more should be sent on it."""
        self.calls = 0
        """Calls under way: they may still be answered when it is over for others."""
        self._is_up = asyncio.get_running_loop().create_future()
        self._may_end = asyncio.Event()
        self._task = asyncio.create_task(self._hold(server), name="the session with an MCP server")

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def up(self, seconds: float) -> None:
        """Return once the server has listed its tools. Raises ConnectionError, after `seconds` at the latest."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._is_up)
        except TimeoutError as error:
            self.is_over = True
            self._task.cancel()
            raise ConnectionError(f"the MCP server was not ready within {seconds:g} s") from error

    def end_if_idle(self) -> None:
        if self.is_over and not self.calls:
            self._may_end.set()

    async def close(self) -> None:
        """End it, at the latest after the limit."""
        self._may_end.set()
        await asyncio.wait((self._task,), timeout=CLOSE_SECONDS_MAX)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CLOSE_SECONDS_MAX)

    async def _hold(self, server: Server) -> None:
        try:
            async with self._session(server) as session:
                self.session, self.tools = session, await _listed(session)
                self._is_up.set_result(None)
                await self._may_end.wait()
        except Exception as error:  # noqa: BLE001 - the top of a task: who waits for the session is told
            self._fail(_innermost(error))
        finally:
            self.is_over = True
            self._fail("it was closed")

    def _fail(self, why: object) -> None:
        if self._is_up.done():
            return
        self._is_up.set_exception(ConnectionError(f"the MCP server cannot be used: {why}"))
        # Looked at: whoever waited may be gone.
        self._is_up.exception()

    @asynccontextmanager
    async def _session(self, server: Server) -> AsyncGenerator[ClientSession]:
        if isinstance(server, ClientSession):
            yield server
            return
        async with Client(self._watched(_transport(server)), cache=None) as client:
            yield client.session

    @asynccontextmanager
    async def _watched(self, transport: Transport) -> AsyncGenerator[tuple[Any, Any]]:
        async with transport as (reading, writing):
            yield _Watched(reading, self._over), writing

    def _over(self) -> None:
        self.is_over = True
        self.end_if_idle()


class _Watched:
    """The incoming messages of a transport. Their end is told at once, so that no call is sent into the void."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._ended()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)


def _transport(server: StdioServerParameters | str | Callable[[], Transport]) -> Transport:
    match server:
        case StdioServerParameters():
            return stdio_client(server)
        case str():
            return streamable_http_client(server)
        case _:
            return server()


def _innermost(error: BaseException) -> str:
    """Return what went wrong. Transports run in task groups, which wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return str(error) or type(error).__name__


# ---------------------------------------------------------------- what a server says


async def _listed(session: ClientSession) -> list[Tool]:
    """Return all tools. A session that knows them asks for nothing more between a call and its result."""
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise ConnectionError(f"its list of tools has more than {PAGES_MAX} pages")


def _offer(tool: Tool) -> _Offer:
    hints = tool.annotations
    return _Offer(
        name=tool.name,
        description=tool.description or "",
        parameters=tool.input_schema,
        is_repeatable=hints is not None and bool(hints.read_only_hint or hints.idempotent_hint),
    )


def _value(tool: str, result: CallToolResult) -> Any:
    """Return what a tool has answered as JSON. Raises ToolError where it tells of a failure."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if result.is_error:
        raise ToolError("\n".join(texts) or "the tool failed", tool)
    if result.structured_content is not None:
        return result.structured_content
    if len(texts) == len(result.content):
        return "\n".join(texts)
    return [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]


def _unanswered(why: str, *, may_repeat: bool) -> str:
    return f"{why}; it may be called again" if may_repeat else f"outcome_unknown: {why}; it may have run, or may yet"
