"""An agent that asks a model: whole, streamed, and for what the provider does not have."""
# The client is installed in the environment this runs in, not in the one that checks types.
# pyright: reportMissingImports=false

from rebuno import execution, http_client
from stage import note, opened, serve

MESSAGES = [{"role": "user", "content": "Grüße"}]


async def llm(provider: str) -> object:
    async with http_client() as http:
        whole = await http.post(f"{provider}/v1/chat/completions", json={"model": "m-whole", "messages": MESSAGES})
        note("effect", "answered", status=whole.status_code)
        await opened("watched")
        body = {"model": "m-streamed", "messages": MESSAGES, "stream": True}
        async with http.stream("POST", f"{provider}/v1/chat/completions", json=body) as response:
            streamed = "".join([chunk async for chunk in response.aiter_text()])
            kind = response.headers["content-type"]
        missing = await http.post(f"{provider}/v1/missing", json={"model": "m-missing"})
    found = {
        "whole": whole.json(),
        "streamed": [kind, streamed],
        "missing": [missing.status_code, missing.json()],
    }
    note("effect", "all", found=found)
    if execution().dispatch_attempt == 1:
        # The first attempt never comes back from here: it is killed.
        await opened("never")
    return found


if __name__ == "__main__":
    serve(llm)
