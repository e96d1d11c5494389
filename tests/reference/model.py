"""A model provider on loopback, in threads, that counts what it is asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Grüße 🙂"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}
PIECES = [
    *({"choices": [{"index": 0, "delta": {"content": each}, "finish_reason": None}]} for each in "Grüße"),
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]
STREAM = "".join(f"data: {json.dumps(each, ensure_ascii=False)}\n\n" for each in PIECES) + "data: [DONE]\n\n"
MISSING = {"error": {"message": "no such model", "type": "invalid_request_error"}}


class Model:
    """Answers by what is asked for. `asked` are the models of all requests, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        handler = type("Handler", (_Handler,), {"model": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="model")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    model: Model
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.model.asked.append(body["model"])
        if self.path == "/v1/missing":
            self._say(404, "application/json", json.dumps(MISSING))
        elif body.get("stream"):
            self._say(200, "text/event-stream", STREAM)
        else:
            self._say(200, "application/json", json.dumps(COMPLETION, ensure_ascii=False))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests look at what was asked."""

    def _say(self, status: int, content_type: str, text: str) -> None:
        raw = text.encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(raw)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(raw)
        self.close_connection = True
