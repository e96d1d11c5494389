"""`stepwell approval`: what a person is shown before deciding, and what a decision that is refused says."""

import asyncio
import os
import re
import sys

import msgspec

from tests.conformance.harness.answers import accepted
from tests.conformance.harness.approvals import RULE, TARGET, Approval, asked, asking_agent, blocked, principal
from tests.conformance.harness.kernel import Kernel
from tests.support.stack import ROOT

SECONDS_MAX = 30.0
# A line that is drawn over, one that is turned around, and one that looks like another answer.
HOSTILE = {"note": "harmless\r\x1b[2Khidden\u202e", "line": "a\nasked      ls"}


class Ran(msgspec.Struct, frozen=True):
    code: int
    out: str
    notes: str


async def run(kernel: Kernel, *arguments: str) -> Ran:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kernel.cli",
        "approval",
        *arguments,
        env=plain | {"PYTHONPATH": str(ROOT), "STEPWELL_URL": kernel.url, "STEPWELL_API_KEY": kernel.api_key},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, notes = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ran(code=process.returncode or 0, out=out.decode(), notes=notes.decode())


async def test_a_person_is_shown_what_is_asked_by_which_rule_and_why(kernel: Kernel) -> None:
    agent = await asking_agent(kernel, message="really?", approvers=["api", "boss"])
    approval = await blocked(await agent.acknowledged(), {"amount": 100})

    listed = (await run(kernel, "list")).out
    shown = (await run(kernel, "show", approval.id)).out

    assert re.search(rf"^{approval.id}  pending +{agent.id} +{TARGET} +{RULE} +really\?$", listed, re.MULTILINE)
    for line in (
        f'asked      {TARGET} {{"amount": 100}}',
        f"rule       {RULE}",
        "message    really?",
        "deciders   api, boss",
    ):
        assert line in shown.splitlines()
    assert "status     pending, until 20" in shown


async def test_what_an_agent_sends_can_neither_hide_nor_draw_over_what_a_person_is_shown(kernel: Kernel) -> None:
    agent = await asking_agent(kernel, message="a\x1bb\u202ec")
    approval = await blocked(await agent.acknowledged(), HOSTILE)

    shown = (await run(kernel, "show", approval.id)).out
    listed = (await run(kernel, "list")).out

    assert [text for text in (shown, listed) if not text.replace("\n", "").isprintable()] == []
    assert [line for line in shown.splitlines() if line.startswith("asked")] == [
        f'asked      {TARGET} {{"note": "harmless\\r\\u001b[2Khidden\\u202e", "line": "a\\nasked      ls"}}'
    ]
    assert "message    a\\x1bb\\u202ec" in shown.splitlines()


async def test_a_letter_is_shown_as_itself_however_it_was_spelled(kernel: Kernel) -> None:
    agent = await asking_agent(kernel)
    lease = await agent.acknowledged()
    body = f'{{"kind": "tool_call", "target": "{TARGET}", "args": {{"command": "\\u0072m"}}}}'.encode()
    approval = Approval(lease, accepted(await lease.request("/steps", body)))

    assert '{"command": "rm"}' in (await run(kernel, "show", approval.id)).out


async def test_a_decision_is_made_once_and_the_second_is_told_so(kernel: Kernel) -> None:
    approval = await asked(kernel)

    denied = await run(kernel, "deny", approval.id, "--reason", "too much")
    again = await run(kernel, "grant", approval.id)

    assert (denied.code, denied.out) == (0, "")
    assert "is denied" in denied.notes
    assert (again.code, again.out, len(again.notes.splitlines())) == (1, "", 1)
    assert (await approval.read())["rationale"] == "too much"
    shown = await run(kernel, "show", approval.id)
    assert {"status     denied by api", "reason     too much"} <= set(shown.out.splitlines())
    assert approval.id not in (await run(kernel, "list")).out
    assert approval.id in (await run(kernel, "list", "--status", "denied")).out


async def test_a_grant_may_have_a_reason_and_lets_the_step_run(kernel: Kernel) -> None:
    approval = await asked(kernel)

    assert (await run(kernel, "grant", approval.id, "--reason", "fine")).code == 0

    assert (await approval.read())["rationale"] == "fine"
    assert (await (await approval.next_lease()).decide(TARGET))["decision"] == "proceed"


async def test_whoever_may_only_decide_sees_all_but_the_arguments(kernel: Kernel) -> None:
    _, decider = await principal(kernel, "approvals:decide")
    _, stranger = await principal(kernel, "executions:write")
    approval: Approval = await asked(kernel, message="why not")

    shown = await run(decider, "show", approval.id)

    assert shown.code == 0
    assert f"asked      {TARGET} (its arguments cannot be shown: " in shown.out
    assert "message    why not" in shown.out
    for arguments in (("list",), ("show", approval.id), ("grant", approval.id), ("deny", approval.id)):
        refused = await run(stranger, *arguments)
        assert (refused.code, refused.out) == (1, "")
        assert "needs another key, or this one more scopes" in refused.notes
    unknown = await run(decider, "grant", "0199aaaa-0000-7000-8000-0000000000ff")
    assert (unknown.code, "approval not found" in unknown.notes) == (1, True)
