"""Agents that survive anything: every effect is a step, recorded once and replayed ever after."""

from stepwell.agent import Agent
from stepwell.client import Client
from stepwell.context import ExecutionContext, execution
from stepwell.errors import (
    APIError,
    Blocked,
    ConflictError,
    ForbiddenError,
    LeaseSuperseded,
    NetworkError,
    NotFoundError,
    PolicyError,
    RateLimited,
    RebunoError,
    Signal,
    Terminated,
    ToolError,
    UnauthorizedError,
    ValidationError,
    failure_reason,
)
from stepwell.kernel import KernelClient
from stepwell.llm.refusals import raise_for_refusal
from stepwell.llm.transports import http_client
from stepwell.llm.transports_sync import sync_http_client
from stepwell.signing import Lease
from stepwell.tools import step, tool, tool_schema, wrap_tool
from stepwell.types import Approval, Event, Execution, Result, Step, StepDecision, Usage

__all__ = [
    "APIError",
    "Agent",
    "Approval",
    "Blocked",
    "Client",
    "ConflictError",
    "Event",
    "Execution",
    "ExecutionContext",
    "ForbiddenError",
    "KernelClient",
    "Lease",
    "LeaseSuperseded",
    "NetworkError",
    "NotFoundError",
    "PolicyError",
    "RateLimited",
    "RebunoError",
    "Result",
    "Signal",
    "Step",
    "StepDecision",
    "Terminated",
    "ToolError",
    "UnauthorizedError",
    "Usage",
    "ValidationError",
    "execution",
    "failure_reason",
    "http_client",
    "raise_for_refusal",
    "step",
    "sync_http_client",
    "tool",
    "tool_schema",
    "wrap_tool",
]
