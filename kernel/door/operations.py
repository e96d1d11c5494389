"""The door about itself: health, readiness, metrics, the OpenAPI document and its page."""

from collections.abc import Callable

import msgspec

from kernel.door.exchange import Request, Response
from kernel.door.metrics import CONTENT_TYPE, Metrics
from kernel.door.openapi import openapi_json, page_html

_HTML = b"text/html; charset=utf-8"
_OK = Response(status=200, body=b'{"status":"ok"}')
_READY = Response(status=200, body=b'{"status":"ready"}')
_RETRY = ((b"retry-after", b"1"),)
_UNREADY = Response(status=503, body=b'{"status":"unavailable"}', headers=_RETRY)


class Operations:
    """Handlers of the routes 3.29. None of them asks the log or the view."""

    def __init__(self, *, is_ready: Callable[[], bool], trouble: Callable[[], str], metrics: Metrics) -> None:
        """`trouble` says what an operator has to do before the door can be ready, if anything."""
        self._is_ready = is_ready
        self._trouble = trouble
        self._metrics = metrics
        self._openapi = Response(status=200, body=openapi_json())
        self._page = Response(status=200, body=page_html(), content_type=_HTML)

    async def health(self, _: Request) -> Response:
        return _OK

    async def ready(self, _: Request) -> Response:
        if self._is_ready():
            return _READY
        trouble = self._trouble()
        if not trouble:
            return _UNREADY
        body = msgspec.json.encode({"status": "unavailable", "reason": trouble})
        return Response(status=503, body=body, headers=_RETRY)

    async def metrics(self, _: Request) -> Response:
        return Response(status=200, body=self._metrics.text(), content_type=CONTENT_TYPE)

    async def openapi(self, _: Request) -> Response:
        return self._openapi

    async def docs(self, _: Request) -> Response:
        return self._page
