"""The commands that talk to a door, as a person meets them: what they do, show and refuse."""

import re
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import msgspec
import pytest

from kernel.cli import main
from kernel.embedded import free_port
from tests.support.stack import Stack

KEY = re.compile(r"sw_[A-Za-z0-9_-]{43}\n")
BUNDLE = "default_action: deny  # é\nrules: []\n"


class Ran(msgspec.Struct, frozen=True):
    code: int
    out: str
    notes: str


Run = Callable[..., Ran]


@pytest.fixture
def run(stack: Stack, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on the shared server, with the operator's key where `is_operator`."""

    def run(*arguments: str, is_operator: bool = False, key: str | None = None, url: str | None = None) -> Ran:
        bearer = key if key is not None else stack.operator_key if is_operator else stack.api_key
        monkeypatch.setenv("STEPWELL_URL", url or stack.url)
        monkeypatch.setenv("STEPWELL_API_KEY", bearer)
        capfd.readouterr()
        code = main(arguments)
        captured = capfd.readouterr()
        return Ran(code=code, out=captured.out, notes=captured.err)

    return run


@pytest.fixture
def agent(stack: Stack) -> str:
    agent_id = f"agent:{secrets.token_hex(4)}"
    body = {"id": agent_id, "webhook_url": "http://127.0.0.1:9/", "secret": "s" * 16}
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    httpx.post(f"{stack.url}/v0/agents", json=body, headers=headers, trust_env=False).raise_for_status()
    return agent_id


# ---------------------------------------------------------------- what they do


def test_a_key_is_written_alone_to_standard_output_and_works_until_it_is_revoked(run: Run) -> None:
    made = run("key", "create", "ci", "--scope", "executions:read", "--scope", "agents:admin", "--expires-in", "1h")
    assert made.code == 0
    assert KEY.fullmatch(made.out)
    key_id = re.findall(r"key (\S+) of tenant default, until \S+Z", made.notes)[0]
    assert "shown this once" in made.notes

    listed = run("key", "list")
    assert re.search(rf"{key_id}  default +ci +\S+Z  executions:read agents:admin\n", listed.out)
    assert made.out.strip() not in listed.out
    key = made.out.strip()
    assert run("agent", "list", key=key).code == 0
    assert "everywhere within a second" in run("key", "revoke", key_id).notes
    refused = run("agent", "list", key=key)
    assert (refused.code, refused.out) == (1, "")
    assert "wrong, revoked or expired" in refused.notes


def test_a_tenant_is_made_and_shown_with_what_it_may_use(run: Run) -> None:
    tenant = f"tenant-{secrets.token_hex(4)}"
    quotas = ("--live-executions", "5", "--bytes-per-day", "1000", "--no-policy", "deny", "--retention", "1h")
    row = rf"{tenant} +live_executions=5 bytes_per_day=1000 +no_policy=deny retention_seconds=3600\n"

    made = run("tenant", "create", tenant, *quotas, is_operator=True)
    assert (made.code, f"tenant {tenant} is made" in made.notes) == (0, True)
    assert re.search(row, made.out)
    again = run("tenant", "create", tenant, is_operator=True)
    assert "was there" in again.notes
    assert re.search(row, run("tenant", "list", is_operator=True).out)

    key = run("key", "create", "first", "--scope", "agents:admin", "--tenant", tenant, is_operator=True)
    assert run("agent", "list", key=key.out.strip()).out.splitlines() == ["AGENT  POLICY  CALLS  CHANGED  WEBHOOK"]
    only = run("key", "list", "--tenant", tenant, is_operator=True).out.splitlines()
    assert len(only) == 2
    assert tenant in only[1]


def test_a_policy_is_loaded_from_a_file_shown_as_it_is_and_removed(run: Run, agent: str, tmp_path: Path) -> None:
    file = tmp_path / "bundle.yaml"
    file.write_text(BUNDLE)

    loaded = run("policy", "load", agent, str(file))
    assert loaded.code == 0
    version = re.findall(r"has policy (\d+)", loaded.notes)[0]
    shown = run("policy", "show", agent)
    assert (shown.out, shown.notes) == (BUNDLE, f"policy {version}\n")
    assert re.search(rf"{agent} +{version} +64 ", run("agent", "list").out)

    assert run("policy", "remove", agent).code == 0
    none = run("policy", "show", agent)
    assert (none.code, none.out, "has no policy" in none.notes) == (0, "", True)
    assert run("agent", "delete", agent).code == 0
    assert agent not in run("agent", "list").out


def test_a_list_is_shown_whole_however_many_pages_it_has(run: Run, stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {stack.operator_key}"}
    tenant = f"tenant-{secrets.token_hex(4)}"
    run("tenant", "create", tenant, is_operator=True)
    body = {"name": "many", "scopes": ["audit:read"], "tenant": tenant}
    with httpx.Client(base_url=stack.url, headers=headers, trust_env=False) as client:
        for _ in range(3):
            client.post("/v0/keys", json=body).raise_for_status()
        ids = [key["id"] for key in client.get(f"/v0/keys?tenant={tenant}").json()]

    shown = run("key", "list", "--tenant", tenant, is_operator=True).out

    assert [line.split()[0] for line in shown.splitlines()[1:]] == ids


# ---------------------------------------------------------------- what they refuse


def test_what_the_door_refuses_is_told_in_its_words_with_what_to_do(run: Run, agent: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("\n")
    for told, refused in (
        ("agent not found", run("policy", "show", "nobody")),
        ("key_id: not a dashed UUID", run("key", "revoke", "x/../y")),
        ("id: 1 to 64 letters", run("tenant", "create", "a b", is_operator=True)),
        ("needs another key, or this one more scopes", run("tenant", "list")),
        ("needs another key, or this one more scopes", run("policy", "show", agent, is_operator=True)),
        ("is empty; to remove a policy: stepwell policy remove", run("policy", "load", agent, str(empty))),
        ("set STEPWELL_API_KEY, or give one with --key", run("key", "list", key="")),
        ("tenant not found", run("key", "create", "x", "--scope", "audit:read", "--tenant", "no", is_operator=True)),
    ):
        assert refused.code == 1, refused
        assert refused.out == ""
        assert refused.notes.startswith("stepwell: ")
        assert told in refused.notes
        assert len(refused.notes.splitlines()) == 1


def test_what_never_reaches_a_door_ends_with_2_and_says_why(run: Run, tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (256 * 1024 + 1))
    odd = tmp_path / "odd.yaml"
    odd.write_bytes(b"\xff")
    nobody = f"http://127.0.0.1:{free_port()}"
    for told, failed in (
        (f"no door answers at {nobody}", run("agent", "list", url=nobody)),
        ("is no address of a door", run("agent", "list", url="localhost:8080")),
        ("is no address of a door", run("agent", "list", url="http://user:word@host")),
        ("is no address of a door", run("agent", "list", url="http://host:99999999")),
        ("characters that no key has", run("agent", "list", key="a key")),
        ("cannot be read: No such file", run("policy", "load", "a", str(tmp_path / "nowhere"))),
        ("is larger than", run("policy", "load", "a", str(big))),
        ("is not text in UTF-8", run("policy", "load", "a", str(odd))),
    ):
        assert failed.code == 2, failed
        assert failed.notes.startswith("stepwell: ")
        assert told in failed.notes


class _Elsewhere(BaseHTTPRequestHandler):
    """Some other web server, which sends whoever asks to where keys would be collected."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(302 if "agents" in self.path else 200)
        self.send_header("Location", "/collect")
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test reads standard error."""


def test_another_web_server_is_told_from_a_door_and_no_redirect_is_followed(run: Run) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        answers = [run("agent", "list", url=url), run("key", "list", url=f"{url}/below/")]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

    assert [each.code for each in answers] == [1, 2]
    assert all("does not speak like a Stepwell door" in each.notes for each in answers)
    assert _Elsewhere.asked == ["/v0/agents?limit=1000", "/below/v0/keys?limit=1000"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("key",),
        ("key", "create", "x"),
        ("key", "create", "x", "--scope", "root"),
        ("key", "create", "x", "--scope", "operator", "--expires-in", "soon"),
        ("tenant", "create", "x", "--live-executions", "0"),
        ("tenant", "create", "x", "--no-policy", "maybe"),
        ("policy", "load", "x"),
        ("agent", "nonsense"),
    ],
)
def test_a_command_line_that_means_nothing_is_refused(arguments: tuple[str, ...], capfd: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
