"""Calls of a framework as steps: what the adapters of frameworks with models and tools have in common."""

from typing import Any

from stepwell.context import Run, current
from stepwell.errors import PolicyError
from stepwell.kernel import Idempotency, Kind
from stepwell.values import decode, encode


async def call_model(model: str, request: Any, run: Run) -> Any:
    """Return the recorded answer of a model to a request; `run` asks for it where there is none.

    The kernel counts the tokens of its member `usage`. Raises as `ExecutionContext.invoke_tool`.
    """

    async def answered() -> Any:
        # In the shape in which provider's answers are recorded, since the kernel looks for tokens there.
        answer = encode(await run(), what="answer").decode()
        return {"status": 200, "headers": {"content-type": "application/json"}, "body": answer}

    record = await _called("llm_call", model, request, "safe_to_retry", answered)
    return decode(record["body"])


async def call_tool(tool: str, args: Any, run: Run, *, idempotency: Idempotency) -> Any:
    """Return the recorded result of a tool; `run` calls it where there is none. Raises the same."""
    return await _called("tool_call", tool, args, idempotency, run)


def denial(tool: str, refusal: PolicyError) -> str:
    """Return what a model is told of a call that a rule denies."""
    return f"{tool} not allowed. reason: {refusal}"


def makes_steps(function: Any) -> bool:
    """Whether a function comes from `tool` or `wrap_tool`: its calls are steps already."""
    return hasattr(function, "__tool_id__") or hasattr(function, "__input_schema__")


async def _called(kind: Kind, target: str, args: Any, idempotency: Idempotency, run: Run) -> Any:
    context = current(f"a call of {target}")

    async def call() -> Any:
        return await context.invoke_tool(target, args, idempotency=idempotency, run=run, kind=kind)

    return await context.enter(call)
