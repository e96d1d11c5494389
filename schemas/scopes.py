"""What a bearer key may open, as the contract's table of scopes spells it."""

from typing import Literal, get_args

Scope = Literal[
    "executions:read",
    "executions:write",
    "executions:erase",
    "approvals:decide",
    "approvals:assert",
    "agents:admin",
    "policies:admin",
    "steps:delegate",
    "audit:read",
    "tenant:admin",
    "operator",
]

SCOPES: tuple[Scope, ...] = get_args(Scope)
DELEGATE: Scope = "steps:delegate"
OPERATOR: Scope = "operator"
TENANT_ADMIN: Scope = "tenant:admin"
