"""One delivery from claim to recorded outcome. What cannot be finished is left to the lease of the attempt."""

import logging
import secrets
import time
from typing import assert_never

from kernel.control.control import Control
from kernel.domain.errors import LogUnavailable, OutcomeUnknown
from kernel.domain.retry import JITTER_PERMILLE_MAX
from kernel.domain.signatures import sign_body
from kernel.ports import DueItem, Log
from schemas.entries import DispatchDelivered, DispatchFailed
from schemas.webhook import WebhookBody, encode_webhook
from workers.dispatching.claims import Claim, Claims
from workers.dispatching.entries import delivered, failed, outgoing
from workers.dispatching.slots import Slot
from workers.webhook import UNREACHABLE, Delivered, Request, Undelivered, WebhookSender

CLAIM_SECONDS = 5.0
"""A claim older than that is not sent: with the delivery's own deadline it could outlast the lease."""
OUTCOME_SECONDS = 20.0

logger = logging.getLogger(__name__)


class Deliveries:
    """Claims, sends and records; holds nothing between two deliveries."""

    def __init__(self, *, log: Log, claims: Claims, control: Control, sender: WebhookSender) -> None:
        self._log = log
        self._claims = claims
        self._control = control
        self._sender = sender

    async def deliver(self, shard: int, item: DueItem, slot: Slot) -> None:
        """Deliver the attempt that is due, if the fold gives it to this process. The slot is given back after the call.

        It is the caller's to give back in every other case.
        """
        claim = await self._claims.claim(shard, item)
        if claim is None:
            return
        if not await slot.is_lasting():
            logger.warning("execution %s: its webhook slot ended; it is left to its lease", item.execution_id)
            return
        if time.monotonic() - claim.since >= CLAIM_SECONDS:
            logger.warning("execution %s: the claim is too old to be sent; it is left to its lease", item.execution_id)
            return
        result = await self._post(item, claim)
        # Beside the record, which must not wait for it.
        slot.give()
        await self._record(shard, item, _outcome(item, claim, result))

    async def _post(self, item: DueItem, claim: Claim) -> Delivered | Undelivered:
        agent = self._control.agent(item.tenant, item.agent_id)
        if agent is None:
            # Deleted since the item was taken. Nothing is sent; the next try finds it gone and ends the execution.
            return UNREACHABLE
        body = encode_webhook(
            WebhookBody(
                execution_id=item.execution_id,
                dispatch_id=claim.lease.dispatch_id,
                dispatch_attempt=claim.lease.attempt,
                lease_timeout_seconds=_seconds(item.header.limits.lease_ms),
                sent_at=int(time.time()),
            )
        )
        request = Request(
            url=agent.webhook_url,
            execution_id=item.execution_id,
            signature=sign_body(agent.secrets[0], body),
            body=body,
        )
        return await self._sender.post(request)

    async def _record(self, shard: int, item: DueItem, entry: DispatchDelivered | DispatchFailed) -> None:
        try:
            await self._log.append(outgoing(shard, entry), timeout_seconds=OUTCOME_SECONDS)
        except (LogUnavailable, OutcomeUnknown) as error:
            logger.warning("execution %s: the outcome of a delivery may be lost: %s", item.execution_id, error)


def _outcome(item: DueItem, claim: Claim, result: Delivered | Undelivered) -> DispatchDelivered | DispatchFailed:
    match result:
        case Delivered():
            return delivered(item, lease=claim.lease, claim_seq=claim.seq)
        case Undelivered():
            logger.info(
                "execution %s: attempt %d to agent %s failed: %s",
                item.execution_id,
                claim.lease.attempt,
                item.agent_id,
                result.reason,
            )
            return failed(
                item,
                lease=claim.lease,
                claim_seq=claim.seq,
                reason=result.reason,
                jitter_permille=secrets.randbelow(JITTER_PERMILLE_MAX + 1),
                retry_after_ms=result.retry_after_ms,
            )
        case _:
            assert_never(result)


def _seconds(milliseconds: int) -> int | float:
    """Whole seconds as an integer, as a client expects to read them."""
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000
