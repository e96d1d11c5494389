"""Counts of what the door answered, in a number of series that no client can raise: operations times status classes."""

from collections.abc import Callable

from kernel.door.routes import ROUTES

UNKNOWN = "unknown"
"""Every path that is no route, whatever it is."""
_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of one door, and gauges that are read when somebody asks."""

    def __init__(self) -> None:
        operations = [route.operation for route in ROUTES if route.is_built] + [UNKNOWN]
        self._requests = {operation: [0] * len(_CLASSES) for operation in operations}
        self._seconds = dict.fromkeys(operations, 0.0)
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def count(self, operation: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self._requests[operation][status // 100 - 1] += 1
        self._seconds[operation] += seconds

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """Show a number as it stands at each scrape."""
        self._gauges[name] = (meaning, read)

    def text(self) -> bytes:
        """Return all series in the Prometheus text format."""
        lines = ["# HELP stepwell_requests_total Answered requests.", "# TYPE stepwell_requests_total counter"]
        for operation, counts in self._requests.items():
            lines += [
                f'stepwell_requests_total{{operation="{operation}",status="{name}"}} {count}'
                for name, count in zip(_CLASSES, counts, strict=True)
                if count
            ]
        lines.append("# HELP stepwell_request_seconds_total Time to answer.")
        lines.append("# TYPE stepwell_request_seconds_total counter")
        lines += [
            f'stepwell_request_seconds_total{{operation="{operation}"}} {seconds:.6f}'
            for operation, seconds in self._seconds.items()
            if seconds
        ]
        for name, (meaning, read) in self._gauges.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"{name} {read():g}"]
        return ("\n".join(lines) + "\n").encode()
