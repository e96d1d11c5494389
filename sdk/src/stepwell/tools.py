"""Functions whose every call is a step: `tool`, `wrap_tool` and `step`."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast, overload

from stepwell.binding import Signature, converted
from stepwell.context import current
from stepwell.errors import PolicyError
from stepwell.kernel import Idempotency, Kind

P = ParamSpec("P")
R = TypeVar("R")
Function = Callable[..., Any]


@overload
def tool(tool_id: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R]]: ...
@overload
def tool(tool_id: Callable[P, Any], /) -> Callable[P, Any]: ...
@overload
def tool(
    tool_id: str | None = None, *, idempotency: Idempotency = "safe_to_retry"
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def tool(tool_id: Any = None, *, idempotency: Idempotency = "safe_to_retry") -> Any:
    """Make every call of a function a step of kind `tool_call`.

    The step's target is the given id, else the function's name; its arguments are those of the call, defaults included.
    A recorded call is not made again: its result is returned, or its error raised as ToolError. Of a denied call the
    text `<tool> not allowed. reason: <reason>` is returned, so that a model can read it.

    The result is awaited on an event loop; a thread without one gets it. A plain function runs in a thread.
    Raises TypeError where JSON cannot carry the arguments, before anything is sent.
    """
    if callable(tool_id):
        return _tool(tool_id, "", idempotency)

    def decorated(function: Function) -> Function:
        return _tool(function, tool_id or "", idempotency)

    return decorated


def wrap_tool(
    name: str,
    invoke: Callable[[dict[str, Any]], Any],
    *,
    description: str = "",
    args_schema: dict[str, Any] | None = None,
    idempotency: Idempotency = "safe_to_retry",
    to_result: Callable[[Any], Any] | None = None,
    transform_args: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Callable[..., Any]:
    """Return a function of keywords whose calls are steps, for tools that are no plain functions.

    `invoke` makes the call with the recorded arguments, `transform_args` maps what was passed to those, and `to_result`
    what came of it to JSON. `args_schema` is the JSON Schema of the arguments.
    """
    schema = args_schema or {}

    def wrapper(**kwargs: Any) -> Any:
        args = dict(kwargs) if transform_args is None else transform_args(kwargs)

        async def run() -> Any:
            result = await offloaded(invoke, args)
            return result if to_result is None else to_result(result)

        return _called(name, args, idempotency, run)

    wrapper.__name__ = wrapper.__qualname__ = name
    wrapper.__doc__ = description or None
    described = cast("Any", wrapper)
    described.__signature__ = _signature_of(schema)
    described.__input_schema__ = schema
    return wrapper


def step(
    name: str,
    fn: Function,
    args: dict[str, Any] | None = None,
    idempotency: Idempotency = "safe_to_retry",
) -> Any:
    """Record what `fn(**args)` returns as a step of kind `local`, and return it; a recorded one is not called again.

    For the clock, random choices and fresh ids: whatever decides which effects happen. Raises PolicyError where it is
    denied.
    """
    given = args or {}
    context = current(f"step({name!r})")

    async def run() -> Any:
        return await offloaded(fn, **given)

    kind: Kind = "local"
    return context.enter(lambda: context.invoke_tool(name, given, idempotency=idempotency, run=run, kind=kind))


def tool_schema(function: Function) -> dict[str, Any]:
    """Return name, description and JSON Schema of a tool's arguments, as model providers want them.

    Raises TypeError where an annotation has no JSON Schema.
    """
    described = cast("Any", function)
    given = getattr(described, "__input_schema__", None)
    original = inspect.unwrap(function)
    return {
        "name": getattr(described, "__tool_id__", original.__name__),
        "description": inspect.getdoc(original) or "",
        "parameters": Signature(original).schema() if given is None else given,
    }


async def offloaded(function: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Return what a function returns or its awaitable gives; a plain function runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await _in_thread(partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Make a call in a thread of its own.

    A pool could be full of handlers that wait for their tools, which wait for the pool, whatever its size.
    """
    outcome: Future[Any] = Future()
    context = copy_context()

    def run() -> None:
        try:
            outcome.set_result(context.run(call))
        except StopIteration as error:
            # As of a coroutine that raises it: nobody who awaits a future would ever hear of one.
            failure = RuntimeError("a plain function raised StopIteration")
            failure.__cause__ = error
            outcome.set_exception(failure)
        except BaseException as error:  # noqa: BLE001 - whoever awaits it gets it
            outcome.set_exception(error)

    outcome.set_running_or_notify_cancel()
    threading.Thread(target=run, name="stepwell-body", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def refuse_generator(function: Function, what: str) -> None:
    """Raise TypeError for a function that gives its result piece by piece: what is recorded is one value."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{what} must not be a generator: its result is recorded as one value. Return a list")


def _tool(function: Function, tool_id: str, idempotency: Idempotency) -> Function:
    refuse_generator(function, f"the tool {function.__name__}")
    signature = Signature(function)
    name = tool_id or function.__name__
    returns = signature.hints.get("return")

    def called(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.arguments(args, kwargs)

        async def run() -> Any:
            return await offloaded(function, *args, **kwargs)

        return _called(name, arguments, idempotency, run, returns)

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await called(*args, **kwargs)

    # Frameworks ask a tool whether it is a coroutine function, and get the answer of the function itself.
    wrapper = wraps(function)(awaited if inspect.iscoroutinefunction(function) else called)
    cast("Any", wrapper).__tool_id__ = name
    return wrapper


def _called(
    name: str, args: dict[str, Any], idempotency: Idempotency, run: Callable[[], Awaitable[Any]], returns: Any = None
) -> Any:
    context = current(f"the tool {name}")

    async def call() -> Any:
        try:
            result = await context.invoke_tool(name, args, idempotency=idempotency, run=run)
        except PolicyError as refusal:
            return f"{name} not allowed. reason: {refusal}"
        # What was recorded is JSON; the caller gets the model that the tool says it returns, live as replayed.
        return converted(result, returns)

    return context.enter(call)


def _signature_of(schema: dict[str, Any]) -> inspect.Signature:
    required = set(schema.get("required", ()))
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if name in required else None
            )
            for name in schema.get("properties", {})
            if name.isidentifier()
        ]
    )
