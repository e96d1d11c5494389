"""A36, A38: what a gateway refuses, and what it lets through unrecorded."""

import asyncio
import base64
import logging
from typing import Any

import httpx
import openai
import pytest

from stepwell import Blocked, PolicyError, execution, raise_for_refusal
from tests.sdk.gateway_place import ASK, COMPLETION, DENY, KEY, ask, place
from tests.support.wait import wait_until_async
from tests.support.wire_provider import Reply

# ---------------------------------------------------------------- refusals


async def test_a38_a_denied_call_is_refused_and_the_provider_not_asked() -> None:
    async with place() as found:

        async def handle() -> None:
            async with await found.by_path() as client:
                with pytest.raises(openai.PermissionDeniedError) as refused:
                    await ask(client)
            assert refused.value.response.json()["error"]["type"] == "rebuno_refusal"
            raise_for_refusal(refused.value)

        run = await found.kernel.run(handle, policy=DENY)

    assert run.failure_reason == "policy_denied: too dear"
    assert found.provider.hits == 0
    with pytest.raises(PolicyError):
        raise_for_refusal(RuntimeError("rebuno_refusal: denied reason=too dear"))


async def test_a38_a_call_that_a_person_has_to_decide_parks_the_execution() -> None:
    async with place(Reply(pieces=(COMPLETION,))) as found:

        async def handle() -> str:
            async with await found.by_path() as client:
                try:
                    return (await ask(client))["choices"][0]["message"]["content"]
                except openai.APIStatusError as error:
                    raise_for_refusal(error)
                    raise

        running = await found.kernel.start(handle, policy=ASK)
        approval = await running.approval()
        assert found.provider.hits == 0
        await found.kernel.client.grant_approval(approval.id)
        run = await running.wait()

    assert run.output == "Grüße 🙂", run.failure_reason
    assert found.provider.hits == 1
    with pytest.raises(Blocked):
        raise_for_refusal(RuntimeError("rebuno_refusal: blocked"))


@pytest.mark.parametrize(("policy", "reason"), [(DENY, "policy_denied: too dear"), (ASK, "")])
async def test_a38_a_handler_that_looks_at_no_refusal_ends_as_the_kernel_meant_it(policy: str, reason: str) -> None:
    async with place(Reply(pieces=(COMPLETION,))) as found:

        async def handle() -> str:
            async with await found.by_path() as client:
                return (await ask(client))["choices"][0]["message"]["content"]

        running = await found.kernel.start(handle, policy=policy)
        if policy == ASK:
            await found.kernel.client.grant_approval((await running.approval()).id)
        run = await running.wait()

    assert run.failure_reason == reason
    assert found.provider.hits == (policy == ASK)


async def test_a38_a_superseded_attempt_is_told_so() -> None:
    answers: list[httpx.Response] = []
    async with place(Reply(pieces=(COMPLETION,))) as found, httpx.AsyncClient(trust_env=False) as http:
        is_stale = asyncio.Event()
        urls: list[str] = []

        async def handle() -> None:
            urls.append(await execution().gateway_url(found.url))
            if len(urls) == 1:
                await asyncio.Event().wait()
            answers.append(await http.post(f"{urls[0]}/chat/completions", json={"model": "m"}))
            is_stale.set()

        running = await found.kernel.start(handle)
        await wait_until_async(lambda: bool(urls), "the first attempt")
        await running.interrupt()
        await running.wait()

    assert is_stale.is_set()
    assert answers[0].status_code == 409
    assert answers[0].json()["error"]["message"] == "rebuno_refusal: lease_superseded"
    assert found.provider.hits == 0


# ---------------------------------------------------------------- tokens


def _altered(token: str) -> str:
    return token[:-1] + ("0" if token[-1] != "0" else "1")


def _of_another(token: str) -> str:
    text = base64.urlsafe_b64decode(token.partition(".")[0] + "===").decode()
    fields = text.split("\n")
    fields[3] = str(int(fields[3]) + 1)
    return base64.urlsafe_b64encode("\n".join(fields).encode()).rstrip(b"=").decode() + "." + "0" * 64


@pytest.mark.parametrize("spoiled", [lambda _: "", lambda _: "x", _altered, _of_another])
async def test_a36_without_a_good_token_nobody_is_asked(spoiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place() as found, httpx.AsyncClient(trust_env=False, base_url=found.url) as http:
        tokens: list[str] = []

        async def handle() -> None:
            tokens.append((await execution().gateway_headers())["Rebuno-Delegation"])
            token = spoiled(tokens[0])
            for method in ("POST", "GET"):
                body = {"model": "m"} if method == "POST" else None
                by_path = await http.request(method, f"/d/{token}/v1/chat/completions", json=body)
                headers = {"Rebuno-Delegation": token}
                by_header = await http.request(method, "/v1/chat/completions", json=body, headers=headers)
                for answer in (by_path, by_header):
                    assert answer.status_code == 401, answer.text
                    assert set(answer.json()["error"]) == {"type", "message"}

        run = await found.kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert found.provider.hits == 0


async def test_a36_an_expired_token_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.kernel.DELEGATION_SECONDS", -31)
    async with place() as found:

        async def handle() -> None:
            async with await found.by_path() as client:
                with pytest.raises(openai.AuthenticationError):
                    await ask(client)

        run = await found.kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert found.provider.hits == 0


async def test_a36_headers_that_name_another_are_refused() -> None:
    async with place() as found, httpx.AsyncClient(trust_env=False, base_url=found.url) as http:

        async def handle() -> None:
            headers = await execution().gateway_headers()
            for name in ("Rebuno-Agent-Id", "Rebuno-Execution-Id", "Rebuno-Dispatch-Id", "Rebuno-Dispatch-Attempt"):
                answer = await http.post("/v1/x", json={}, headers=headers | {name: "another"})
                assert answer.status_code == 401, name

        run = await found.kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert found.provider.hits == 0


# ---------------------------------------------------------------- everything else that is asked for


async def test_what_is_no_call_is_passed_through_unrecorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "stepwell")
    listed = Reply(pieces=(b'{"data":', b"[]}"), headers={"content-type": "application/json", "x-other": "kept"})
    async with place(listed) as found, httpx.AsyncClient(trust_env=False) as http:

        async def handle() -> None:
            url = await execution().gateway_url(found.url)
            answer = await http.get(f"{url}/models?limit=2", headers={"authorization": f"Bearer {KEY}"})
            assert (answer.status_code, answer.json(), answer.headers["x-other"]) == (200, {"data": []}, "kept")
            await http.post(f"{url}/odd", content=b"a=b")

        run = await found.kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert run.steps == []
    assert found.provider.requests[0].startswith(b"GET /v1/models?limit=2 ")
    assert found.provider.hits == 2
    assert [record for record in caplog.records if "is not recorded" in record.message]


async def test_what_cannot_be_taken_is_refused_with_a_reason() -> None:
    async with place() as found, httpx.AsyncClient(trust_env=False) as http:
        seen: list[tuple[int, str]] = []
        requests: list[tuple[str, dict[str, Any]]] = [
            ("/nowhere", {"json": {}}),
            ("/v1/../admin", {"json": {}}),
            ("/v1/x", {"content": b"{}", "headers": {"content-encoding": "gzip"}}),
            ("/v1/x", {"content": b'{"text": "\\ud800"}', "headers": {"content-type": "application/json"}}),
            ("/v1/x", {"content": b"[" * 40_000_000}),
        ]

        async def handle() -> None:
            url = (await execution().gateway_url(found.url)).removesuffix("/v1")
            for path, options in requests:
                request = http.build_request("POST", url + "/v1", **options)
                request.url = httpx.URL(url + "/v1", raw_path=(httpx.URL(url).raw_path.decode() + path).encode())
                answer = await http.send(request)
                seen.append((answer.status_code, answer.json()["error"]["type"]))

        run = await found.kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert [status for status, _ in seen] == [404, 404, 415, 400, 413]
    assert found.provider.hits == 0
