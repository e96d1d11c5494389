"""LangGraph and LangChain: calls of chat models and of tools become steps of the execution they are made for.

What a model or a tool answers is recorded whole and built anew from the record, so live and replayed runs see equal
objects.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self, TypeVar, cast, overload

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig, RunnableParallel, RunnableSequence
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as tool_of

from stepwell.adapters.calls import call_model, call_tool, denial
from stepwell.adapters.langchain_records import (
    asked,
    gather,
    packed,
    read_answer,
    read_chunk,
    streamed_answer,
    unpacked,
    whole_answer,
)
from stepwell.context import Run, current
from stepwell.errors import PolicyError
from stepwell.kernel import Idempotency
from stepwell.tools import offloaded

Made = TypeVar("Made", bound=Runnable[Any, Any])
Call = Callable[[], Coroutine[Any, Any, Any]]

# The callbacks of a graph hear of a call from the wrapper; told by the model as well, they would hear it twice.
_QUIET: RunnableConfig = {"callbacks": []}


@overload
def durable(what: BaseChatModel) -> BaseChatModel: ...
@overload
def durable(what: BaseTool, *, idempotency: Idempotency = "safe_to_retry") -> BaseTool: ...
@overload
def durable(
    what: Sequence[BaseTool | Callable[..., Any]], *, idempotency: Idempotency = "safe_to_retry"
) -> list[BaseTool]: ...
def durable(what: Any, *, idempotency: Idempotency = "safe_to_retry") -> Any:
    """Return a chat model, a tool or a list of tools whose every call inside of a handler is a step.

        graph = create_react_agent(durable(model), durable([search, book]))

    A step of a model is an `llm_call` with the model's name as target; one of a tool is a `tool_call` with the tool's
    name and the arguments that the model chose, without those that the graph injects. A call that fails raises
    ToolError, live as replayed. A denied tool answers `<tool> not allowed. reason: <reason>`; a denied model raises
    PolicyError. Wrap a model before tools are bound to it. Compile the graph without a checkpointer that outlives the
    handler: the record is the checkpoint. A graph that is invoked plainly belongs into a plain handler or a thread.
    """
    if isinstance(what, DurableModel | DurableTool):
        return what
    if isinstance(what, BaseChatModel):
        return DurableModel.of(what)
    if isinstance(what, BaseTool):
        return DurableTool.of(what, idempotency)
    if isinstance(what, list | tuple):
        return [durable(_tool(each), idempotency=idempotency) for each in cast("list[Any]", what)]
    raise TypeError(f"{type(what).__name__} is no chat model, no tool and no list of tools: wrap those it is made of")


def _tool(given: BaseTool | Callable[..., Any]) -> BaseTool:
    return given if isinstance(given, BaseTool) else tool_of(given)


# ---------------------------------------------------------------- models


class DurableModel(BaseChatModel):
    """A chat model whose calls are steps."""

    inner: BaseChatModel

    @classmethod
    def of(cls, model: BaseChatModel) -> Self:
        # What a cache holds differs between attempts: only the model itself, inside of its step, may look into one.
        return cls(
            inner=model,
            name=model.name,
            tags=model.tags,
            metadata=model.metadata,
            profile=model.profile,
            disable_streaming=model.disable_streaming,
            cache=False,
            output_version=None,
        )

    @property
    def _llm_type(self) -> str:
        return self.inner._llm_type

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return self.inner._identifying_params

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return self.inner._get_ls_params(stop=stop, **kwargs)

    def get_token_ids(self, text: str) -> list[int]:
        return self.inner.get_token_ids(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        return self.inner.get_num_tokens_from_messages(messages, tools)

    # ------------------------------------------------------------ what is made of the model

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return _durable_within(self.inner.bind_tools(tools, **kwargs))

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[LanguageModelInput, Any]:
        return _durable_within(self.inner.with_structured_output(schema, **kwargs))

    # ------------------------------------------------------------ calls

    async def agenerate(self, *args: Any, **kwargs: Any) -> LLMResult:
        try:
            return await super().agenerate(*args, **kwargs)
        except Exception:
            # LangChain takes a signal for an answer and breaks on it: the signal is what has to be raised.
            current("a model").check()
            raise

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        async def run() -> Any:
            return whole_answer(await offloaded(self.inner.generate, [messages], stop=stop, callbacks=[], **kwargs))

        return read_answer(_waited(self._call(messages, stop, kwargs, run)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        async def run() -> Any:
            return whole_answer(await self.inner.agenerate([messages], stop=stop, callbacks=[], **kwargs))

        return read_answer(await self._call(messages, stop, kwargs, run)())

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        """Yield the chunks once all of them are recorded: the thread that reads them is the one that waits."""

        def streamed() -> list[Any]:
            chunks: list[Any] = []
            for chunk in self.inner.stream(messages, _QUIET, stop=stop, **kwargs):
                gather(chunks, chunk)
            return chunks

        async def run() -> Any:
            return streamed_answer(await offloaded(streamed))

        answer = _waited(self._call(messages, stop, kwargs | {"stream": True}, run))
        for plain in answer["chunks"]:
            yield read_chunk(plain)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        """Yield the chunks as they come. A reader that stops early cuts nothing: the answer is recorded whole."""
        chunks: list[Any] = []
        loop, is_more = asyncio.get_running_loop(), asyncio.Event()

        async def run() -> Any:
            async for chunk in self.inner.astream(messages, _QUIET, stop=stop, **kwargs):
                gather(chunks, chunk)
                # The body runs on the handler's loop, which need not be the reader's.
                loop.call_soon_threadsafe(is_more.set)
            return streamed_answer(chunks)

        def ended(task: "asyncio.Future[Any]") -> None:
            is_more.set()
            if not task.cancelled():
                # Looked at: of a reader that was cancelled, nobody else does.
                task.exception()

        call = self._call(messages, stop, kwargs | {"stream": True}, run)
        task = asyncio.ensure_future(current("a model").enter(call))
        task.add_done_callback(ended)
        at = 0
        try:
            while not task.done() or at < len(chunks):
                if at == len(chunks):
                    is_more.clear()
                    await is_more.wait()
                    continue
                yield read_chunk(chunks[at])
                at += 1
            for plain in (await task)["chunks"][at:]:
                yield read_chunk(plain)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            await asyncio.wait((task,))

    def _call(self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any], run: Run) -> Call:
        """Return what makes the step."""
        params = self._get_ls_params(stop=stop, **options)
        target = params.get("ls_model_name") or self._llm_type
        return partial(call_model, target, asked(params, messages, stop, options), run)


def _durable_within(made: Made) -> Made:
    """Return what was made of a model with the model in it durable. Raises TypeError where none is to be seen."""
    changed = _replaced(made)
    if changed is made:
        raise TypeError(f"the model in a {type(made).__name__} cannot be made durable: it is not to be seen")
    return cast("Made", changed)


def _replaced(part: Runnable[Any, Any]) -> Runnable[Any, Any]:
    if isinstance(part, BaseChatModel):
        return durable(part)
    if isinstance(part, RunnableBinding):
        bound = _replaced(part.bound)
        return part if bound is part.bound else part.model_copy(update={"bound": bound})
    if isinstance(part, RunnableSequence):
        steps = [_replaced(step) for step in part.steps]
        is_same = all(new is old for new, old in zip(steps, part.steps, strict=True))
        return part if is_same else RunnableSequence(*steps, name=part.name)
    if isinstance(part, RunnableParallel):
        branches = {name: _replaced(step) for name, step in part.steps__.items()}
        is_same = all(branches[name] is step for name, step in part.steps__.items())
        return part if is_same else RunnableParallel(branches)
    return part


# ---------------------------------------------------------------- tools


class DurableTool(BaseTool):
    """A tool whose calls are steps."""

    inner: BaseTool
    idempotency: Idempotency = "safe_to_retry"

    @classmethod
    def of(cls, tool: BaseTool, idempotency: Idempotency) -> Self:
        return cls(
            inner=tool,
            idempotency=idempotency,
            name=tool.name,
            description=tool.description,
            args_schema=tool.args_schema,
            return_direct=tool.return_direct,
            response_format=tool.response_format,
            tags=tool.tags,
            metadata=tool.metadata,
            extras=tool.extras,
        )

    @property
    def func(self) -> Any:
        """What graphs look at to find the arguments that they inject."""
        return getattr(self.inner, "func", None)

    @property
    def coroutine(self) -> Any:
        return getattr(self.inner, "coroutine", None)

    @property
    def args(self) -> dict[str, Any]:
        return self.inner.args

    @property
    def tool_call_schema(self) -> Any:
        return self.inner.tool_call_schema

    def get_input_schema(self, config: RunnableConfig | None = None) -> Any:
        return self.inner.get_input_schema(config)

    @cached_property
    def _injected_args_keys(self) -> frozenset[str]:
        return self.inner._injected_args_keys

    def run(self, tool_input: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        call = partial(self.inner.run, tool_input, *args, tool_call_id=tool_call_id, **kwargs)
        if not self._is_valid(tool_input, tool_call_id):
            return call()

        async def run() -> Any:
            return packed(await offloaded(call), tool_call_id)

        try:
            return unpacked(_waited(self._call(tool_input, run)), tool_call_id)
        except PolicyError as refusal:
            return self._denied(refusal, tool_call_id)

    async def arun(self, tool_input: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        call = partial(self.inner.arun, tool_input, *args, tool_call_id=tool_call_id, **kwargs)
        if not self._is_valid(tool_input, tool_call_id):
            return await call()

        async def run() -> Any:
            return packed(await call(), tool_call_id)

        try:
            return unpacked(await self._call(tool_input, run)(), tool_call_id)
        except PolicyError as refusal:
            return self._denied(refusal, tool_call_id)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("the tool inside runs, in a step")

    def _is_valid(self, tool_input: Any, tool_call_id: str | None) -> bool:
        """Whether the tool takes it. What it refuses makes no step: the tool itself tells the model what is wrong."""
        given = dict(cast("dict[str, Any]", tool_input)) if isinstance(tool_input, dict) else tool_input
        try:
            self.inner._to_args_and_kwargs(given, tool_call_id)
        except ValueError:
            return False
        return True

    def _call(self, tool_input: Any, run: Run) -> Call:
        """Return what makes the step, with the arguments that the model chose."""
        is_text = isinstance(tool_input, str)
        args = {"input": tool_input} if is_text else self.inner._filter_injected_args(tool_input)
        return partial(call_tool, self.name, args, run, idempotency=self.idempotency)

    def _denied(self, refusal: PolicyError, tool_call_id: str | None) -> Any:
        text = denial(self.name, refusal)
        if tool_call_id is None:
            return text
        return ToolMessage(text, tool_call_id=tool_call_id, name=self.name, status="error")


def _waited(call: Call) -> Any:
    """Make a step from a thread and wait for it."""
    context = current("a durable model or tool")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return context.enter(call)
    raise RuntimeError(
        "called plainly on an event loop, which the step needs: await ainvoke or astream, or call the graph in a thread"
    )
