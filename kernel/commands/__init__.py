"""Commands that talk to a running door over HTTP: `stepwell tenant | key | agent | policy | approval`.

They know the wire and nothing else of the server, so they work on any door that can be reached.
"""

from kernel.commands.actions import Shown
from kernel.commands.arguments import add_commands

__all__ = ["Shown", "add_commands"]
