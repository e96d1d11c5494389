"""An agent inside of a FastAPI application, beside its other routes.

    uvicorn --factory examples.mounted:create_app

Orders come in at /orders, and each becomes an execution. The kernel sends it back as a webhook, to
/agents/clerk/webhook, and the agent ships it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from stepwell import Agent, Client, tool


async def courier(order: str) -> str:
    """Stands for the service of somebody else: it takes a parcel and returns its number."""
    return f"parcel of {order}"


@tool(idempotency="at_most_once")
async def ship(order: str) -> str:
    return await courier(order)


async def handle(order: str) -> str:
    return await ship(order)


def create_app() -> FastAPI:
    agent, client = Agent("clerk", description="Ships orders"), Client()
    agent.bind(handle)

    # A server tells the outermost application alone when it begins and ends. Mounted, the agent has to be told by it.
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await agent.publish_metadata()
        try:
            yield
        finally:
            # What is under way comes to its end, for 25 seconds at most; the rest is taken up by another process.
            await agent.drain()
            await client.close()

    app = FastAPI(title="Orders", lifespan=lifespan)
    app.mount("/agents/clerk", agent.app)

    @app.post("/orders/{order}")
    async def take(order: str) -> dict[str, str]:
        # The same order is the same execution, however often it is posted.
        execution = await client.create("clerk", {"order": order}, idempotency_key=order)
        return {"execution_id": execution.id}

    @app.get("/orders/{execution_id}")
    async def show(execution_id: str) -> dict[str, str | None]:
        execution = await client.get(execution_id)
        return {"status": execution.status, "parcel": execution.output}

    return app
