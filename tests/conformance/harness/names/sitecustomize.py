"""Loaded by every process of a stack that is given NAMES_FILE: names resolve to what the file says at the moment.

The file holds a line for each name: the name, a space, its address. All other names resolve as ever, and so do all of
them for who does not ask the module `socket`: the event loop, which the door asks.
"""

import os
import socket
from typing import Any

FILE = os.environ.get("NAMES_FILE", "")

_resolve: Any = socket.getaddrinfo


def _address(host: Any) -> Any:
    """Return what the file says about a host, else the host itself."""
    with open(FILE, encoding="ascii") as file:
        names = dict(line.split() for line in file)
    return names.get(host, host)


def _getaddrinfo(host: Any, *arguments: Any, **keywords: Any) -> Any:
    return _resolve(_address(host), *arguments, **keywords)


if FILE:
    socket.getaddrinfo = _getaddrinfo
