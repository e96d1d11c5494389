"""A small agent over plain HTTP, to learn the protocol from. It needs nothing but Python.

Stepwell calls the agent with a signed webhook; the agent answers at once and then works. Every tool call is a step:
it is submitted first, and the decision says what to do. `proceed` runs the tool and records its result, `replay`
hands back the result that an earlier attempt recorded. So a killed agent resumes without doing anything twice.
"""

import argparse
import hashlib
import hmac
import http.client
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

AGENT_ID = "scribe"
WEBHOOK_BYTES_MAX = 64 * 1024
CLOCK_SECONDS_MAX = 300


class Stopped(Exception):
    """This attempt is over: superseded, ended from outside, or waiting for an approval. Nothing is left to do."""


def mac(secret: str, text: bytes) -> str:
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


class Run:
    """One attempt at one execution: what its handler may ask of the kernel."""

    def __init__(self, kernel: str, secret: str, webhook: dict[str, Any]) -> None:
        self.kernel = kernel
        self.secret = secret
        self.path = f"/v0/executions/{webhook['execution_id']}"
        self.dispatch_id: str = webhook["dispatch_id"]
        self.attempt: int = webhook["dispatch_attempt"]
        self.lease_seconds: float = webhook["lease_timeout_seconds"]
        self.is_over = threading.Event()

    def tool(self, target: str, args: dict[str, Any], body: Callable[..., Any]) -> Any:
        """Call a tool as a step and return its result, run now or recorded before."""
        step = self.call("POST", "/steps", {"kind": "tool_call", "target": target, "args": args})
        match step["decision"]:
            case "replay":
                say(f"attempt {self.attempt}: {target} {json.dumps(args)} replayed")
                return step.get("result")
            case "proceed":
                result = body(**args)
                self.call("POST", f"/steps/{step['step_id']}/complete", {"result": result})
                say(f"attempt {self.attempt}: {target} {json.dumps(args)} done")
                return result
            case decision:
                raise Stopped(f"{decision} {step.get('reason', '')}")

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Make one signed request. A lost answer is asked for again under the same key, so it happens once."""
        payload = b"" if body is None else json.dumps(body).encode()
        key = str(uuid.uuid4())
        give_up_at = time.monotonic() + self.lease_seconds
        while True:
            try:
                status, retry_seconds, answer = self.send(method, self.path + path, payload, key)
            except OSError:
                status, retry_seconds, answer = 503, 1, {}
            if status < 300:
                return answer
            if status not in (429, 503, 504) or time.monotonic() > give_up_at:
                raise Stopped(f"{status} {answer.get('code', '')}")
            time.sleep(retry_seconds)

    def send(self, method: str, target: str, payload: bytes, key: str) -> tuple[int, int, Any]:
        """Send one request signed with the `v1` scheme, and return status, Retry-After and body."""
        timestamp = str(int(time.time()))
        signed = ("rebuno-request-v1", method, target, timestamp, self.dispatch_id, str(self.attempt), "")
        headers = {
            "Rebuno-Agent-Id": AGENT_ID,
            "Rebuno-Timestamp": timestamp,
            "Rebuno-Dispatch-Id": self.dispatch_id,
            "Rebuno-Dispatch-Attempt": str(self.attempt),
            "Rebuno-Signature": "v1=" + mac(self.secret, "\n".join(signed).encode() + payload),
            "Idempotency-Key": key,
        }
        address = urlsplit(self.kernel)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=35)
        try:
            connection.request(method, target, payload, headers)
            response = connection.getresponse()
            answer = json.loads(response.read() or b"{}")
            return response.status, int(response.headers.get("Retry-After", 1)), answer
        finally:
            connection.close()

    def heartbeat(self) -> None:
        """Keep the lease while the handler works; a kernel that refuses has given the execution to somebody else."""
        while not self.is_over.wait(self.lease_seconds / 3):
            try:
                self.call("POST", "/heartbeat")
            except Stopped:
                return


def run_execution(run: Run, handler: Callable[[Run, Any], Any]) -> None:
    """Run the handler for one attempt and hand in what it returns."""
    threading.Thread(target=run.heartbeat, daemon=True).start()
    try:
        execution = run.call("GET", "")
        output = handler(run, execution["input"])
        run.call("POST", "/complete", {"output": output})
        say(f"attempt {run.attempt}: the execution is complete")
    except Stopped as reason:
        say(f"attempt {run.attempt}: stopped ({reason})")
    finally:
        run.is_over.set()


def serve(kernel: str, secret: str, port: int, handler: Callable[[Run, Any], Any]) -> None:
    """Take webhooks until the process ends."""
    attempts: dict[str, tuple[str, int]] = {}

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), WEBHOOK_BYTES_MAX))
            signature = self.headers.get("Rebuno-Signature", "").encode("latin-1")
            # The signature covers the bytes as they came, so it is checked before anything is parsed.
            if not hmac.compare_digest(f"sha256={mac(secret, body)}".encode(), signature):
                return self.answer(401)
            webhook = json.loads(body)
            if abs(time.time() - webhook["sent_at"]) > CLOCK_SECONDS_MAX:
                return self.answer(401)
            # The answer acknowledges the attempt. It goes out before the work, which may take as long as it likes.
            self.answer(200)
            last_dispatch_id, last_attempt = attempts.get(webhook["execution_id"], ("", 0))
            if webhook["dispatch_id"] == last_dispatch_id and webhook["dispatch_attempt"] <= last_attempt:
                return None
            # A former attempt that still runs is refused at its next call and stops by itself.
            attempts[webhook["execution_id"]] = (webhook["dispatch_id"], webhook["dispatch_attempt"])
            run = Run(kernel, secret, webhook)
            threading.Thread(target=run_execution, args=(run, handler), daemon=True).start()
            return None

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing about every request."""

    with ThreadingHTTPServer(("127.0.0.1", port), Webhook) as server:
        say(f"listening on http://127.0.0.1:{server.server_port}")
        server.serve_forever()


def say(line: str) -> None:
    print(line, flush=True)


# What this agent does: it writes the lines of its input to a file, one tool call a line.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="http://127.0.0.1:8080")
    parser.add_argument("--port", type=int, default=9001)
    parser.add_argument("--file", type=Path, default=Path("lines.txt"))
    parser.add_argument("--tool-seconds", type=float, default=1.0, help="how long each tool call takes")
    options = parser.parse_args()

    def append_line(line: str) -> int:
        time.sleep(options.tool_seconds)
        with options.file.open("a", encoding="utf-8") as file:
            return file.write(f"{line}\n")

    def write_lines(run: Run, lines: list[str]) -> dict[str, int]:
        sizes = [run.tool("append_line", {"line": line}, append_line) for line in lines]
        return {"lines": len(sizes), "characters": sum(sizes)}

    serve(options.kernel, os.environ["AGENT_SECRET"], options.port, write_lines)


if __name__ == "__main__":
    main()
