"""The Lua scripts, each a file beside this module, as values that a client can run."""

import hashlib
from importlib import resources


class Script:
    """One script. `digest` is the name under which a server that has loaded it knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = resources.files("kernel.view").joinpath(f"{name}.lua").read_bytes()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()


ACQUIRE = Script("acquire")
ANNOUNCE = Script("announce")
APPLY = Script("apply")
BEAT = Script("beat")
BUCKET = Script("bucket")
DEFER = Script("defer")
KEEP = Script("keep")
LIST = Script("list")
LIST_APPROVALS = Script("list_approvals")
LOAD = Script("load")
RELEASE = Script("release")
RENEW = Script("renew")
SPEND = Script("spend")
TAKE_DUE = Script("take_due")
TAKE_SLOT = Script("take_slot")
WIPE_BEGIN = Script("wipe_begin")
WIPE_END = Script("wipe_end")
WIPE_STEP = Script("wipe_step")
