"""An agent under a bundle: one run that a person lets go on, and the ways in which it hears of a refusal."""
# The client is installed in the environment this runs in, not in the one that checks types.
# pyright: reportMissingImports=false

import secrets
from collections.abc import Awaitable

from rebuno import PolicyError, RateLimited, step, tool
from stage import note, serve


@tool
async def record(name: str) -> str:
    """Each run of the body leaves another mark, so a repeated effect shows in the result too."""
    mark = secrets.token_hex(8)
    note("effect", "record", name=name, mark=mark)
    return mark


@tool(idempotency="at_most_once")
async def pay(amount: int) -> int:
    note("effect", "pay", amount=amount)
    return amount


@tool
async def mail(to: str) -> str:
    note("effect", "mail", to=to)
    return to


@tool
async def export(table: str) -> str:
    note("effect", "export", table=table)
    return table


def decide() -> str:
    note("effect", "decide")
    return "decided"


async def heard(call: Awaitable[object]) -> list[object]:
    """What a call came to, in words that JSON can carry; only the client's own two refusals are caught."""
    try:
        return ["returned", await call]
    except PolicyError as error:
        # The client writes its code and status around the text; the first argument is the text alone.
        return [type(error).__name__, error.args[0], error.rule_id]
    except RateLimited as error:
        return [type(error).__name__, error.reason]


async def payment() -> object:
    return [await record("before"), await pay(7), await record("after")]


async def governed(scenario: str) -> object:
    match scenario:
        case "payment":
            return await payment()
        case "asked" | "hurried":
            return [await heard(step(scenario, decide)), await heard(record("after"))]
        case "limited":
            return [await heard(mail("first")), await heard(mail("second")), await heard(record("after"))]
        case "forbidden":
            return [await heard(export("people")), await heard(step("published", decide)), await heard(record("after"))]
        case "forbidden and uncaught":
            return await step("published", decide)
        case "limited and uncaught":
            return [await mail("first"), await mail("second")]
        case _:
            raise LookupError(scenario)


if __name__ == "__main__":
    serve(governed)
