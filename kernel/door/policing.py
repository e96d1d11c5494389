"""The verdict on a submission: the agent's bundle, the tenant's default, and buckets that doors share.

It is made before the entry and stamped into it. Whether the step is new only the fold knows: a token that was taken for
one that is not is given back, and a bucket without one refuses only what the fold finds new.
"""

import asyncio
import logging
from functools import partial

from msgspec.structs import replace

from kernel.control.control import Control
from kernel.domain.buckets import OVER, UNAVAILABLE, shared_bucket
from kernel.domain.canonical import Plain
from kernel.domain.errors import ViewUnavailable
from kernel.domain.policy import BROKEN, Call, evaluate
from kernel.door.drawing import new_approval_id
from kernel.ports import DoorView, Located
from kernel.settings import Settings
from schemas.answers import Decided
from schemas.entries import RateTerms, StepSubmitted, Verdict

ARGS_BYTES_INLINE_MAX = 16 * 1024
"""Larger arguments are judged beside the event loop: a regex may take its time over them."""

_log = logging.getLogger(__name__)


class Token:
    """A token of a bucket that doors share, taken for a step that may turn out not to be new."""

    __slots__ = ("bucket", "rule_id", "tenant", "terms")

    def __init__(self, tenant: str, bucket: bytes, rule_id: str, terms: RateTerms) -> None:
        self.tenant = tenant
        self.bucket = bucket
        self.rule_id = rule_id
        self.terms = terms


class Policing:
    """Judges submissions by what the control stream says now."""

    def __init__(self, *, settings: Settings, control: Control, view: DoorView) -> None:
        self._control = control
        self._view = view
        self._shards = settings.shards
        self._approval_timeout_ms = int(settings.approval_timeout_seconds * 1000)
        self._no_policy = settings.no_policy or ("allow" if settings.mode == "dev" else "deny")

    async def judge(
        self, owner: Located, entry: StepSubmitted, args: Plain, *, deadline: float
    ) -> tuple[Verdict, Token | None]:
        """Return the verdict on a call, and the token that was taken for it, if any.

        Raises Unavailable where the agent's bundle cannot be compiled in time.
        """
        verdict = await self._evaluated(owner, entry, args, deadline)
        if verdict.approval is not None:
            verdict = replace(verdict, approval_id=new_approval_id(entry.execution_id, self._shards))
        terms = verdict.rate_limit
        if terms is None or terms.per == "execution":
            return verdict, None
        token = Token(owner.tenant, shared_bucket(verdict.rule_id, terms, owner.agent_id), verdict.rule_id, terms)
        limited = await self._take(token)
        if not limited:
            return verdict, token
        is_refused = limited == OVER or terms.on_error == "deny"
        return replace(verdict, limited=limited) if is_refused else verdict, None

    async def settle(self, token: Token | None, answer: Decided | None) -> None:
        """Give the token back unless a new step was recorded by its rule; `answer` is None where certainly nothing was.

        A step that may have run already is denied before any rule is asked.
        """
        if token is None or (answer is not None and answer.is_new and answer.rule_id == token.rule_id):
            return
        terms = token.terms
        try:
            await self._view.give_token(
                token.tenant, token.bucket, max_calls=terms.max_calls, window_ms=terms.window_ms
            )
        except ViewUnavailable as error:
            # A token that is lost errs towards refusing, and the bucket fills up again.
            _log.info("a token could not be given back: %s", error)

    async def _evaluated(self, owner: Located, entry: StepSubmitted, args: Plain, deadline: float) -> Verdict:
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        policy = await self._control.policy(owner.tenant, owner.agent_id, timeout_seconds=left)
        call = Call(agent_id=owner.agent_id, kind=entry.kind, target=entry.target, args=args)
        if policy is None:
            return evaluate(None, call, version=0, no_policy="allow" if self._is_allowed(owner.tenant) else "deny")
        bundle = BROKEN if policy.bundle is None else policy.bundle
        judge = partial(
            evaluate,
            bundle,
            call,
            version=policy.version,
            no_policy="deny",
            approval_timeout_ms=self._approval_timeout_ms,
        )
        return judge() if len(bytes(entry.args)) <= ARGS_BYTES_INLINE_MAX else await asyncio.to_thread(judge)

    def _is_allowed(self, tenant: str) -> bool:
        """Whether an agent without a bundle may do everything."""
        record = self._control.tenant(tenant)
        chosen = None if record is None else record.settings.no_policy
        return (chosen or self._no_policy) == "allow"

    async def _take(self, token: Token) -> str:
        """Take the token and return an empty text, or return why there is none."""
        terms = token.terms
        try:
            is_taken = await self._view.take_token(
                token.tenant, token.bucket, max_calls=terms.max_calls, window_ms=terms.window_ms
            )
        except ViewUnavailable:
            return UNAVAILABLE
        return "" if is_taken else OVER
