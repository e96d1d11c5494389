"""`stepwell gateway`, or `python -m stepwell.gateway` where the kernel is not installed."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stepwell.gateway.app import Gateway
from stepwell.gateway.settings import Settings, settings_of

PORT = 8081
SHUTDOWN_SECONDS = 20

_ABOUT = """\
An HTTP proxy in front of model providers: a call of an agent becomes a step, is answered by its provider once, and is
replayed ever after. Agents point their provider's client at it, and carry a delegation token.

  REBUNO_URL       the kernel: http://host:port, several doors with commas between (default: http://localhost:8080)
  REBUNO_API_KEY   one of its keys, with the scope steps:delegate

Without a file, /v1/… goes to OpenAI and /v1/messages to Anthropic, with the key that the caller sends.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to end; return the exit code."""
    options = _parser().parse_args(argv)
    try:
        settings = settings_of(os.environ, options.config)
    except ValueError as error:
        sys.stderr.write(f"stepwell gateway: {error}\n")
        return 2
    sys.stdout.write(_told(settings, options.host, options.port))
    sys.stdout.flush()
    serve(settings, host=options.host, port=options.port)
    return 0


def serve(settings: Settings, *, host: str, port: int) -> None:
    """Serve on an address until the process is told to end."""
    import uvicorn

    uvicorn.run(
        Gateway(settings),
        host=host,
        port=port,
        lifespan="on",
        # A wish to speak another protocol is no reason for a fault: the request is answered as it stands.
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stepwell gateway",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with the providers, [upstreams.<name>]")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=PORT, help="port to listen on (default: %(default)s)")
    return parser


def _told(settings: Settings, host: str, port: int) -> str:
    lines = [f"gateway on http://{host}:{port}"]
    for name, upstream in settings.upstreams.items():
        key = "its own key" if upstream.key else "the caller's key"
        paths = " ".join((f"/{name}/…", *(f"{path}/…" for path in upstream.paths)))
        lines.append(f"  {name:<12} {upstream.url}  {paths}  with {key}")
    if not settings.api_key:
        lines.append("  without a key of the kernel: only `stepwell dev` accepts that (REBUNO_API_KEY)")
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    sys.exit(main())
