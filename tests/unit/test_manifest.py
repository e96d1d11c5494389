"""The manifest: what it may say, and that a wrong one fails the start without showing a secret."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from kernel.config import load_settings
from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.domain.errors import Misconfigured
from kernel.domain.policy.limits import BUNDLE_BYTES_MAX
from kernel.log.memory import MemoryLog
from kernel.manifest import MANIFEST_BYTES_MAX, ManifestAgent, apply_manifest, read_manifest
from tests.support.control import following

SERVER = load_settings("server", {"STEPWELL_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"}, {}).settings
DEV = load_settings("dev", {}, {}).settings
SECRET = "a secret of sixteen"
AGENT = f"id: a\n  webhook_url: http://127.0.0.1:9/hook\n  secret: {SECRET}"


async def _read(
    folder: Path, text: str | bytes, environment: dict[str, str] | None = None
) -> tuple[ManifestAgent, ...]:
    path = folder / "stepwell.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return await read_manifest(path, environment or {}, SERVER)


async def _refusal(folder: Path, text: str | bytes, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(Misconfigured) as caught:
        await _read(folder, text, environment)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'stepwell.yaml'}: ")
    assert "\n" not in message
    assert SECRET not in message
    return message


async def test_every_member_of_an_agent_is_read(tmp_path: Path) -> None:
    text = f"""
    agents:
    - id: researcher
      webhook_url: http://127.0.0.1:9/hook
      secret: {SECRET}
      next_secret: another secret of it
      require_v1: true
      max_concurrency: 3
    - {{id: b, webhook_url: "https://b.example", secret: {SECRET}}}
    """

    first, second = await _read(tmp_path, text)

    assert first == ManifestAgent(
        id="researcher",
        webhook_url="http://127.0.0.1:9/hook",
        secret=SECRET,
        next_secret="another secret of it",
        require_v1=True,
        max_concurrency=3,
    )
    assert second == ManifestAgent(id="b", webhook_url="https://b.example", secret=SECRET)


@pytest.mark.parametrize("text", ["", "# nothing\n", "agents:\n", "agents: []", "{}"])
async def test_a_manifest_may_be_empty(tmp_path: Path, text: str) -> None:
    assert await _read(tmp_path, text) == ()


async def test_variables_are_expanded_in_values(tmp_path: Path) -> None:
    environment = {"HOST": "b.example", "SECRET": 'x: "#${NOT_THIS} secret', "V1": "true", "MANY": "9"}
    agent = "id: a, webhook_url: 'https://${HOST}/${HOST}', secret: '${SECRET}'"
    text = f"agents: [{{{agent}, require_v1: '${{V1}}', max_concurrency: '${{MANY}}'}}]"

    (agent,) = await _read(tmp_path, text, environment)

    assert agent.webhook_url == "https://b.example/b.example"
    assert agent.secret == 'x: "#${NOT_THIS} secret'
    assert (agent.require_v1, agent.max_concurrency) == (True, 9)


async def test_plain_words_are_yaml_1_2(tmp_path: Path) -> None:
    (agent,) = await _read(tmp_path, f"agents: [{{id: on, webhook_url: 'https://b.example', secret: {SECRET}}}]")

    assert agent.id == "on"


@pytest.mark.parametrize("text", ["policy: ''", "policy:", "policy_file: ''", "policy_file:", "next_secret: ''"])
async def test_what_is_empty_counts_as_absent(tmp_path: Path, text: str) -> None:
    (agent,) = await _read(tmp_path, f"agents:\n- {AGENT}\n  {text}\n")

    assert agent.secrets == (SECRET.encode(),)


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ("policy_file: a.yaml", "agent a: policy_file: {folder}/a.yaml cannot be read: No such file or directory"),
        ("policy_file: ${POLICY}", "the variable POLICY is not set"),
        ("policy: {rules: [{when: {target: '${TOOL}'}}]}", "the variable TOOL is not set"),
        ("policy: {rules: 1}", "agent a: policy: line 1: rules: "),
        (
            "policy: |\n    default_action: deny\n    rules:\n    - id: 1x\n      then: {decision: maybe}\n",
            "agent a: policy: line 4: rules[0].then.decision: ",
        ),
        ("policy: ' '", "agent a: policy: line 1: the bundle is empty"),
        ("policy: {since: .nan}", "agent a: policy: has a value that is not JSON"),
        ("policy: {since: 2001-01-01}", "agent a: policy: has a value that is not JSON"),
        ("policy: ''\n  policy_file: ''", "`policy` and `policy_file` exclude each other"),
        ("color: red", "unknown field `color`"),
        ("secret: once again as long", "line 5: a key stands there twice"),
        ("max_concurrency: 0", "agent a: max_concurrency: a whole number from 1"),
        ("max_concurrency: many", "max_concurrency"),
        ("require_v1: maybe", "require_v1"),
        ("next_secret: short", "agent a: next_secret: shorter than 16"),
        ("next_secret: ${NEXT", "`${` has to begin the name of a variable"),
        ("next_secret: ${1}", "`${` has to begin the name of a variable"),
        ("next_secret: ${UNSET_VARIABLE}", "the variable UNSET_VARIABLE is not set"),
        ("next_secret: [a, b]", "next_secret"),
        ("1: 2", "agents"),
    ],
)
async def test_a_wrong_member_of_an_agent_fails_the_start(tmp_path: Path, member: str, reason: str) -> None:
    assert reason.replace("{folder}", str(tmp_path)) in await _refusal(tmp_path, f"agents:\n- {AGENT}\n  {member}\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("agents", "a mapping with the key `agents` is expected"),
        ("[]", "a mapping with the key `agents` is expected"),
        ("agent: []", "unknown field `agent`"),
        ("1: 2", ""),
        ("agents: {}", "agents"),
        ("agents: [a]", "agents"),
        (f"agents: [{{id: a, secret: {SECRET}}}]", "webhook_url"),
        ("agents: [{id: a, webhook_url: 'https://b.example'}]", "secret"),
        (f"agents: [{{id: 2001-01-01, webhook_url: 'https://b.example', secret: {SECRET}}}]", "id"),
        (f"agents: [{{id: 'a b', webhook_url: 'https://b.example', secret: {SECRET}}}]", "id: 1 to 128"),
        (f"agents:\n- {AGENT}\n- {AGENT}\n", "agent a stands there twice"),
        (f"agents: &a\n- {AGENT}\n- *b\n", "line 5: not YAML 1.2 of one document"),
        (f"agents: [!!python/object:os.system {SECRET}]", "not YAML 1.2 of one document"),
        (f"{SECRET}: [", "line "),
        ("---\n---\n", "not YAML 1.2 of one document"),
        (b"\xff\xfe\xff", "not YAML 1.2 in UTF-8"),
        (b"a: \x00", "not YAML 1.2 in UTF-8"),
        ("[" * 500, "not YAML 1.2 in UTF-8"),
        (b"#" * (MANIFEST_BYTES_MAX + 1), "larger than"),
    ],
)
async def test_a_wrong_file_fails_the_start(tmp_path: Path, text: str | bytes, reason: str) -> None:
    assert reason in await _refusal(tmp_path, text)


async def test_a_missing_file_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nowhere\.yaml: the file cannot be read"):
        await read_manifest(tmp_path / "nowhere.yaml", {}, SERVER)


async def test_a_short_secret_will_do_in_dev(tmp_path: Path) -> None:
    path = tmp_path / "stepwell.yaml"
    path.write_text("agents: [{id: a, webhook_url: 'http://localhost:9', secret: s}]")

    assert (await read_manifest(path, {}, DEV))[0].secret == "s"
    with pytest.raises(Misconfigured, match="secret: shorter"):
        await read_manifest(path, {}, SERVER)


async def test_an_agent_never_shows_a_secret(tmp_path: Path) -> None:
    (agent,) = await _read(tmp_path, f"agents:\n- {AGENT}\n")

    assert repr(agent) == "ManifestAgent(id='a')"


async def test_applying_registers_what_is_new_and_appends_nothing_when_it_is_so(tmp_path: Path) -> None:
    log = MemoryLog(shards=1)
    control = Control(log, Sealer("a master key of the tests"), poll_seconds=0.01)
    async with following(control):
        for members in ("next_secret: another secret of it\n  require_v1: true\n  max_concurrency: 3", "", ""):
            await apply_manifest(await _read(tmp_path, f"agents:\n- {AGENT}\n  {members}\n"), control)

        agent = control.agent("default", "a")
        assert control.seq == 2
    assert agent is not None
    assert agent.webhook_url == "http://127.0.0.1:9/hook"
    # The second time the secret came without a next one, which ends the rotation; the rest stayed as it was.
    assert agent.secrets == (SECRET.encode(),)
    assert (agent.require_v1, agent.max_concurrency) == (True, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"webhook_url": "http://127.0.0.1:9/other"},
        {"secret": "another secret of it"},
        {"next_secret": "another secret of it"},
        {"require_v1": True},
        {"max_concurrency": 5},
    ],
)
async def test_applying_changes_whatever_differs(change: dict[str, Any]) -> None:
    control = Control(MemoryLog(shards=1), Sealer("a master key of the tests"), poll_seconds=0.01)
    agent = ManifestAgent(id="a", webhook_url="http://127.0.0.1:9/hook", secret=SECRET)
    async with following(control):
        await apply_manifest([agent], control)
        await apply_manifest([msgspec.structs.replace(agent, **change)], control)

    assert control.seq == 2


@pytest.mark.parametrize(
    ("member", "bundle"),
    [
        ("policy: |\n    default_action: deny\n    rules: []\n", "default_action: deny\nrules: []\n"),
        ("policy: 'default_action: ${ACTION}'", "default_action: deny"),
        (
            "policy: {rules: [{id: on, then: {decision: '${ACTION}'}}]}",
            '{"rules": [{"id": "on", "then": {"decision": "deny"}}]}',
        ),
        ("policy_file: own.yaml", "default_action: allow  # ${NOT_A_VARIABLE}\n"),
    ],
)
async def test_a_policy_is_text_in_place_or_in_a_file_of_its_own(tmp_path: Path, member: str, bundle: str) -> None:
    (tmp_path / "own.yaml").write_text("default_action: allow  # ${NOT_A_VARIABLE}\n")

    (agent,) = await _read(tmp_path, f"agents:\n- {AGENT}\n  {member}\n", {"ACTION": "deny"})

    assert agent.bundle == bundle


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"rules:\n- id: a\n", "agent a: policy: line 2: rules[0]: "),
        (b" \n", "is empty"),
        (b"\xff", "is not text in UTF-8"),
        (b"#" * (BUNDLE_BYTES_MAX + 1), "is larger than"),
    ],
)
async def test_a_wrong_policy_file_fails_the_start(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "own.yaml").write_bytes(content)

    assert reason in await _refusal(tmp_path, f"agents:\n- {AGENT}\n  policy_file: own.yaml\n")


async def test_a_policy_larger_than_a_bundle_may_be_fails_the_start(tmp_path: Path) -> None:
    text = f"agents:\n- {AGENT}\n  policy: '{'x' * (BUNDLE_BYTES_MAX + 1)}'\n"

    assert "agent a: policy: larger than" in await _refusal(tmp_path, text)


async def test_applying_sets_a_policy_once_and_never_removes_one(tmp_path: Path) -> None:
    control = Control(MemoryLog(shards=1), Sealer("a master key of the tests"), poll_seconds=0.01)
    agent = ManifestAgent(id="a", webhook_url="http://127.0.0.1:9/hook", secret=SECRET, policy="default_action: deny")
    async with following(control):
        await apply_manifest([agent], control)
        assert control.policy_text("default", "a") == ("default_action: deny", 2)
        await apply_manifest([agent], control)
        await apply_manifest([msgspec.structs.replace(agent, policy=UNSET)], control)
        assert control.policy_text("default", "a") == ("default_action: deny", 2)
        await apply_manifest([msgspec.structs.replace(agent, policy="default_action: allow")], control)

    assert control.policy_text("default", "a") == ("default_action: allow", 3)


async def test_a_variable_that_is_no_text_is_no_secret(tmp_path: Path) -> None:
    text = "agents: [{id: a, webhook_url: 'https://127.0.0.1', secret: '${S}'}]"

    assert "secret: not text" in await _refusal(tmp_path, text, {"S": "a lone surrogate \udcff in it"})
