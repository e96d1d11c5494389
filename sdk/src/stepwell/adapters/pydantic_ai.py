"""Agents of Pydantic AI whose model calls and tool calls are steps.

It must not record headers and queries of requests: they hold credentials.
"""

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai import (
    ApprovalRequired,
    CallDeferred,
    ModelAPIError,
    ModelMessage,
    ModelResponse,
    ModelRetry,
    ModelSettings,
    RequestUsage,
    RunContext,
    ToolDefinition,
    ToolFailed,
    ToolReturn,
    UserError,
)
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolReturnContent
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_core import to_jsonable_python

from stepwell.adapters.calls import call_model, call_tool, denial, makes_steps
from stepwell.context import Run
from stepwell.errors import PolicyError, ToolError
from stepwell.kernel import Idempotency

_UNRECORDED = frozenset({"extra_headers", "extra_query", "timeout"})
_TIMEOUTS = frozenset({"request_timeout", "first_event_timeout"})
_UNTOLD = frozenset({"timestamp", "metadata"})
"""Members of a message's parts that differ from run to run, and that no model is told."""
_MARK = "stepwell"
"""The member of a recorded result that says what else than a plain value a tool has come to."""


def durable(*, at_most_once: Collection[str] = ()) -> AbstractCapability[Any]:
    """Return the capability by which every model call and every tool call of an agent is a step.

        researcher = Agent("openai:gpt-5", tools=[search], capabilities=[durable()])

        async def handle(question: str) -> str:
            return (await researcher.run(question)).output

    Such agents run inside of handlers alone; agents that their tools run need the capability themselves.

    - A model call is a step with the model's name as target; retries of the model's client happen inside of it. What
      fails is raised as an error of both libraries. Answers that are streamed are given out once they are recorded,
      each part as one event.
    - A tool call is a step with the tool's name as target, never run again where `at_most_once` names it; functions of
      `stepwell.tool` stay the steps that they are. A denied call is told to the model. Of a tool only its result is
      recorded, and not what it changes in the dependencies or the usage of the run.
    - Output functions, validators and hooks are no steps, nor is what a toolset lists: an attempt runs them again. It
      also reads again what it keeps elsewhere, such as a conversation: keep that in the execution's state.

    A run raises UserError where no tool has a name of `at_most_once`, and where model calls are to be cut off outside
    of steps: `request_timeout` and `first_event_timeout` are not for these agents, `timeout` is.
    """
    return _Durability(frozenset(at_most_once))


@dataclass
class _Durability(AbstractCapability[Any]):
    at_most_once: frozenset[str] = frozenset()

    def get_ordering(self) -> CapabilityOrdering:
        # What other capabilities make of a call happens inside of its step, and tools have the names that models call.
        return CapabilityOrdering(position="outermost")

    def get_wrapper_model(self, model: Model) -> Model | None:
        return _DurableModel(model)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        return _DurableToolset(toolset, self.at_most_once)

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        unknown = sorted(self.at_most_once - {each.name for each in tool_defs})
        if unknown:
            raise UserError(f"at_most_once: the agent has no tool {', '.join(unknown)}")
        return tool_defs


class _DurableModel(WrapperModel):
    """Calls another model as steps."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def run() -> ModelResponse:
            return await self.wrapped.request(messages, model_settings, model_request_parameters)

        return await self._called(ModelResponse, _request(messages, model_settings, model_request_parameters), run)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[CompletedStreamedResponse]:
        async def run() -> ModelResponse:
            async with self.wrapped.request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                async for _ in stream:
                    pass
            response = stream.get()
            if response.state in ("incomplete", "interrupted"):
                raise RuntimeError("the answer was cut off")
            return response

        request = _request(messages, model_settings, model_request_parameters)
        response = await self._called(ModelResponse, request, run)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)

    async def count_tokens(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> RequestUsage:
        async def run() -> RequestUsage:
            return await self.wrapped.count_tokens(messages, model_settings, model_request_parameters)

        request = _request(messages, model_settings, model_request_parameters)
        return await self._called(RequestUsage, {"count_tokens": request}, run)

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        async def run() -> ModelResponse:
            return await self.wrapped.compact_messages(request_context, instructions=instructions)

        request = _request(
            request_context.messages, request_context.model_settings, request_context.model_request_parameters
        )
        return await self._called(ModelResponse, {"compact": request, "instructions": instructions}, run)

    async def _called(self, kind: type[Any], request: Any, run: Run) -> Any:
        async def dumped() -> Any:
            return JSON_CODEC.dump(kind, await run())

        try:
            recorded = await call_model(self.model_name, request, dumped)
        except ToolError as error:
            failure = _ModelFailed(self.model_name, error)
        else:
            return JSON_CODEC.load(kind, recorded)
        # Outside of the handler, so that it carries no more than when it is replayed.
        raise failure


class _ModelFailed(ToolError, ModelAPIError):
    """A model's failed step, as what falls back to other models knows it."""

    def __init__(self, model: str, error: ToolError) -> None:
        ModelAPIError.__init__(self, model, str(error))
        self.tool_id = error.tool_id
        self.step_id = error.step_id
        self.retryable = error.retryable


@dataclass
class _DurableToolset(WrapperToolset[Any]):
    """Calls the tools of another toolset as steps."""

    at_most_once: frozenset[str]

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if makes_steps(_function_of(tool)):
            if name in self.at_most_once:
                raise UserError(f"at_most_once: {name} is a step already: say it where it is made one")
            return await super().call_tool(name, tool_args, ctx, tool)

        async def run() -> Any:
            return await _outcome(lambda: super(_DurableToolset, self).call_tool(name, tool_args, ctx, tool))

        idempotency: Idempotency = "at_most_once" if name in self.at_most_once else "safe_to_retry"
        try:
            recorded = await call_tool(name, to_jsonable_python(tool_args), run, idempotency=idempotency)
        except PolicyError as refusal:
            return denial(name, refusal)
        return _result(recorded)


async def _outcome(call: Callable[[], Any]) -> Any:
    """Return what a tool has come to as JSON: its result, or what it says by raising."""
    try:
        result = await call()
    except ModelRetry as retry:
        return {_MARK: "retry", "message": retry.message}
    except ToolFailed as failure:
        return {_MARK: "failed", "message": failure.message}
    except ApprovalRequired as approval:
        return {_MARK: "approval", "metadata": approval.metadata}
    except CallDeferred as deferred:
        return {_MARK: "deferred", "metadata": deferred.metadata, "kind": deferred.kind}
    if isinstance(result, ToolReturn):
        return {_MARK: "return", "value": JSON_CODEC.dump(ToolReturn, result)}
    dumped: Any = JSON_CODEC.dump(ToolReturnContent, result)
    if isinstance(dumped, dict) and _MARK in dumped:
        raise TypeError(f"a result with a member {_MARK!r} cannot be recorded")
    return cast("Any", dumped)


def _result(recorded: Any) -> Any:
    """Return a recorded result, or raise what the tool raised."""
    if not (isinstance(recorded, dict) and _MARK in recorded):
        return JSON_CODEC.load(ToolReturnContent, recorded)
    outcome = cast("dict[str, Any]", recorded)
    match outcome[_MARK]:
        case "retry":
            raise ModelRetry(outcome["message"])
        case "failed":
            raise ToolFailed(outcome["message"])
        case "approval":
            raise ApprovalRequired(outcome["metadata"])
        case "deferred":
            raise CallDeferred(outcome["metadata"], kind=outcome["kind"])
        case _:
            return JSON_CODEC.load(ToolReturn, outcome["value"])


def _request(
    messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
) -> dict[str, Any]:
    """Return a request as the arguments of its step. Raises UserError for what would happen outside of steps."""
    given = cast("dict[str, Any]", settings or {})
    if not _TIMEOUTS.isdisjoint(given):
        raise UserError("ModelSettings.request_timeout cuts off steps from outside: use timeout, the client's own")
    output = parameters.output_object
    return {
        "messages": [_plain(message) for message in ModelMessagesTypeAdapter.dump_python(messages, mode="json")],
        "instructions": [part.content for part in parameters.instruction_parts or ()],
        "settings": to_jsonable_python({name: value for name, value in given.items() if name not in _UNRECORDED}),
        "tools": [_described(tool) for tool in parameters.function_tools],
        # Without their configuration, which may hold credentials.
        "native_tools": [tool.unique_id for tool in parameters.native_tools],
        "output_tools": [_described(tool) for tool in parameters.output_tools],
        "output_mode": parameters.output_mode,
        "output_schema": None if output is None else output.json_schema,
    }


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what differs from run to run: ids, times, and what became of other models."""
    parts = [{name: part[name] for name in part if name not in _UNTOLD} for part in message["parts"]]
    return {"kind": message["kind"], "parts": parts}


def _described(tool: ToolDefinition) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}


def _function_of(tool: ToolsetTool[Any]) -> Any:
    """Return the function that a tool calls, None where it calls something else."""
    found: Any = tool
    while hasattr(found, "source_tool"):
        # Of several toolsets in one.
        found = found.source_tool
    schema = getattr(getattr(found, "call_func", None), "__self__", None)
    return getattr(schema, "function", None)
