"""Agents of the OpenAI Agents SDK whose model calls and tool calls are steps.

It must not record headers and queries of requests: they hold credentials.
"""

import copy
import json
from collections.abc import AsyncIterator, Collection
from typing import Any, TypeVar, cast

from agents import (
    Agent,
    AgentOutputSchemaBase,
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    Handoff,
    HostedMCPTool,
    ImageGenerationTool,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    MultiProvider,
    RunContextWrapper,
    Tool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    ToolSearchTool,
    TResponseInputItem,
    UserError,
    WebSearchTool,
)
from agents.exceptions import AgentsException
from agents.items import TResponseStreamEvent
from agents.models import get_default_model
from agents.tool import (
    invoke_function_tool,
    maybe_invoke_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext
from openai.types.responses.response_prompt_param import ResponsePromptParam
from pydantic import TypeAdapter

from stepwell.adapters.calls import call_model, call_tool, denial, makes_steps
from stepwell.errors import PolicyError, RateLimited, ToolError
from stepwell.kernel import Idempotency

Context = TypeVar("Context")

EVENTS_MAX = 100_000
"""Of one streamed answer."""

_RESPONSE = TypeAdapter(ModelResponse)
_EVENT: TypeAdapter[TResponseStreamEvent] = TypeAdapter(TResponseStreamEvent)
_UNRECORDED = frozenset({"extra_headers", "extra_query", "retry", "timeout"})
_ENDS = frozenset({"response.completed", "response.incomplete"})
_FAILURES = frozenset({"response.failed", "response.error", "error"})
_STRUCTURED = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_HOSTED = (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ToolSearchTool,
    WebSearchTool,
)
"""Tools that the provider runs, as a part of the model's answer."""


def durable(
    agent: Agent[Context], *, at_most_once: Collection[str] = (), provider: ModelProvider | None = None
) -> Agent[Context]:
    """Make every model call and every tool call of an agent a step, and return the agent.

        researcher = durable(Agent(name="researcher", tools=[search]))

        async def handle(question: str) -> str:
            return (await Runner.run(researcher, question)).final_output

    The agent itself is changed, and so is every agent that it hands over to or has as a tool: those are known to the
    SDK by identity, so copies would leave the originals in use. Calling it again changes nothing. Such agents run
    inside of handlers alone.

    - A model call is a step with the model's name as target; retries of the model's client happen inside of it.
      Answers that are streamed are given out once they are recorded.
    - A function tool is a step with the tool's name as target, never run again where `at_most_once` names it; functions
      of `stepwell.tool` stay the steps that they are. A denied call is told to the model. Of a tool only its result is
      recorded, and not what it changes in the context of the run.
    - An agent as a tool and a handoff are no steps: what the other agent does is.
    - Instructions, guardrails and hooks are no steps: an attempt runs them again. It also reads a `session` again, with
      what an earlier attempt wrote into it: keep the history in the execution's state.

    `provider` finds the models that are given by name; `RunConfig.model` and `model_provider` are not for these agents.
    Raises ValueError where no tool has a name of `at_most_once`. A model call raises UserError where tools run outside
    of steps (those of MCP servers, shells, computers), and where the runner is to repeat or to time the call:
    `ModelSettings.retry` and `timeout` happen outside of steps, `max_retries` and `timeout` of the client inside.
    """
    names: set[str] = set()
    _Change(frozenset(at_most_once), provider, names).apply(agent)
    unknown = sorted(set(at_most_once) - names)
    if unknown:
        raise ValueError(f"at_most_once: agent {agent.name} has no tool {', '.join(unknown)} that is not durable yet")
    return agent


class _Change:
    """Makes agents durable; `names` takes the names of their tools."""

    def __init__(self, at_most_once: frozenset[str], provider: ModelProvider | None, names: set[str]) -> None:
        self._at_most_once = at_most_once
        self._provider = provider
        self._names = names

    def apply(self, agent: Agent[Any]) -> None:
        if isinstance(agent.model, _DurableModel):
            # Also where handoffs lead back to an agent.
            return
        agent.model = _DurableModel(agent.model, self._provider)
        agent.tools = [self._tool(tool) for tool in agent.tools]
        for handoff in agent.handoffs:
            if isinstance(handoff, Handoff):
                self._handoff(handoff)
            else:
                self.apply(handoff)

    def _tool(self, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool):
            return tool
        inner = _agent_of(tool)
        if inner is not None:
            self.apply(inner)
            return tool
        if _is_durable(tool):
            return tool
        self._names.add(tool.name)
        idempotency: Idempotency = "at_most_once" if tool.name in self._at_most_once else "safe_to_retry"
        changed = copy.copy(tool)
        changed.on_invoke_tool = _ToolStep(tool, idempotency)
        # The time runs inside of the step, so that the same is told when it is replayed.
        changed.timeout_seconds = None
        return changed

    def _handoff(self, handoff: Handoff[Any, Any]) -> None:
        invoke = handoff.on_invoke_handoff

        async def invoked(context: RunContextWrapper[Any], arguments: str) -> Any:
            agent = await invoke(context, arguments)
            self.apply(agent)
            return agent

        handoff.on_invoke_handoff = invoked


class _DurableModel(Model):
    """Calls another model, or the one that a provider has under a name, as steps."""

    def __init__(self, model: Model | str | None, provider: ModelProvider | None) -> None:
        self._model = model
        self._provider = provider
        name = getattr(model, "model", type(model).__name__) if isinstance(model, Model) else model
        self.name = str(name or get_default_model())

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: ResponsePromptParam | None,
    ) -> ModelResponse:
        asked = system_instructions, input, model_settings, tools, output_schema, handoffs
        state: dict[str, Any] = {
            "previous_response_id": previous_response_id,
            "conversation_id": conversation_id,
            "prompt": prompt,
        }

        async def run() -> Any:
            response = await self._found().get_response(*asked, tracing, **state)
            return _RESPONSE.dump_python(response, mode="json", exclude_unset=True)

        return _RESPONSE.validate_python(await call_model(self.name, _request(*asked) | state, run))

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: ResponsePromptParam | None,
    ) -> AsyncIterator[TResponseStreamEvent]:
        asked = system_instructions, input, model_settings, tools, output_schema, handoffs
        state: dict[str, Any] = {
            "previous_response_id": previous_response_id,
            "conversation_id": conversation_id,
            "prompt": prompt,
        }

        async def run() -> Any:
            return await _gathered(self._found().stream_response(*asked, tracing, **state))

        answer = await call_model(self.name, _request(*asked) | state, run)
        for event in answer["events"]:
            yield _EVENT.validate_python(event)

    async def close(self) -> None:
        if isinstance(self._model, Model):
            await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        if isinstance(self._model, Model):
            await self._model._cleanup_on_run_end(owner)

    def _found(self) -> Model:
        """Return the model. Only who calls it needs what the provider needs: a replay makes do without a key."""
        if not isinstance(self._model, Model):
            self._model = (self._provider or MultiProvider()).get_model(self._model)
        return self._model


class _ToolStep:
    """Invokes a function tool as a step."""

    def __init__(self, tool: FunctionTool, idempotency: Idempotency) -> None:
        self._tool = tool
        self._idempotency: Idempotency = idempotency
        # Of the original only tools that the SDK has made tell the model how they failed; others end the run.
        self._tells_failures = hasattr(tool.on_invoke_tool, "__agents_bind_function_tool__")
        # What it raises is the failure of the step, and the model is told outside of it.
        self._inner = set_function_tool_failure_error_function(copy.copy(tool), None)

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        name = self._tool.name

        async def run() -> Any:
            result = await invoke_function_tool(function_tool=self._inner, context=context, arguments=arguments)
            return _told(self._tool, result)

        try:
            return await call_tool(name, _parsed(arguments), run, idempotency=self._idempotency)
        except PolicyError as refusal:
            return denial(name, refusal)
        except RateLimited as limit:
            raise _Limited(limit.reason) from limit
        except ToolError as error:
            failure = _Failed(str(error), error.tool_id, error.step_id)
        text = await self._failure_text(context, failure)
        if text is None:
            raise failure
        return text

    async def _failure_text(self, context: ToolContext[Any], failure: ToolError) -> str | None:
        if not self._tells_failures:
            return None
        return await maybe_invoke_function_tool_failure_error_function(
            function_tool=self._tool, context=context, error=failure
        )


class _Failed(ToolError, AgentsException):
    """The same as an error of the SDK, which puts others into one of its own."""


class _Limited(RateLimited, AgentsException):
    """The same as an error of the SDK."""


async def _gathered(events: AsyncIterator[TResponseStreamEvent]) -> dict[str, Any]:
    """Return a whole streamed answer and its usage as JSON. Raises RuntimeError where it failed, or was cut off."""
    gathered: list[Any] = []
    kind = ""
    async for event in events:
        kind = event.type
        gathered.append(_EVENT.dump_python(event, mode="json", exclude_unset=True))
        if kind in _FAILURES:
            raise RuntimeError(f"the model failed: {json.dumps(gathered[-1], ensure_ascii=False)}")
        if len(gathered) >= EVENTS_MAX:
            raise RuntimeError(f"the answer has more than {EVENTS_MAX} events")
    if kind not in _ENDS:
        raise RuntimeError("the answer was cut off")
    return {"events": gathered, "usage": gathered[-1]["response"].get("usage")}


def _request(
    instructions: str | None,
    given: str | list[TResponseInputItem],
    settings: ModelSettings,
    tools: list[Tool],
    output_schema: AgentOutputSchemaBase | None,
    handoffs: list[Handoff[Any, Any]],
) -> dict[str, Any]:
    """Return a request as the arguments of its step. Raises UserError for what would happen outside of steps."""
    if settings.timeout is not None or (settings.retry is not None and settings.retry.max_retries):
        raise UserError(
            "ModelSettings.retry and timeout repeat and cut off steps from outside: "
            "use max_retries and timeout of the model's client"
        )
    recorded = settings.to_json_dict().items()
    return {
        "instructions": instructions,
        "input": given,
        "settings": {name: value for name, value in recorded if value is not None and name not in _UNRECORDED},
        "tools": [_described(tool) for tool in tools],
        "handoffs": [_function(each.tool_name, each.tool_description, each.input_json_schema) for each in handoffs],
        "output_schema": None
        if output_schema is None or output_schema.is_plain_text()
        else {"name": output_schema.name(), "schema": output_schema.json_schema()},
    }


def _described(tool: Tool) -> dict[str, Any]:
    if isinstance(tool, FunctionTool):
        if not (_is_durable(tool) or _agent_of(tool) is not None):
            raise UserError(f"tool {tool.name} is no step: give it to the agent before durable(), as a function")
        return _function(tool.name, tool.description, tool.params_json_schema)
    if not isinstance(tool, _HOSTED):
        raise UserError(f"tool {tool.name} runs here and is no step: make it a function")
    # Without its configuration, which may hold credentials.
    return {"name": tool.name}


def _function(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": description, "parameters": schema}


def _is_durable(tool: FunctionTool) -> bool:
    return isinstance(tool.on_invoke_tool, _ToolStep) or makes_steps(getattr(tool, "__wrapped__", None))


def _agent_of(tool: FunctionTool) -> Agent[Any] | None:
    """Return the agent that a tool runs, where it does. The SDK has no public name for it."""
    return cast("Agent[Any] | None", getattr(tool, "_agent_instance", None))


def _parsed(arguments: str) -> Any:
    """Return the arguments as JSON; what a model wrote that is none is for the tool to refuse."""
    try:
        return json.loads(arguments) if arguments else {}
    except ValueError:
        return arguments


def _told(tool: FunctionTool, result: Any) -> Any:
    """Return what the model is told of a result, as JSON: what the SDK would only print is its text."""
    items = list(cast("list[Any]", result)) if isinstance(result, list | tuple) else [result]
    if tool.output_json_schema is not None or (items and all(isinstance(item, _STRUCTURED) for item in items)):
        return cast("Any", result)
    try:
        json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(cast("Any", result))
    return cast("Any", result)
