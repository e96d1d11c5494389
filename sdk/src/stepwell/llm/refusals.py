"""Refusals of the kernel as answers that a provider's SDK can read, and back as what they are.

Signals must not run through the code of others that may swallow them: an answer is raised as an error by any SDK, and
the execution keeps the signal, and raises it again by itself.
"""

import re
from collections.abc import Iterator

from stepwell.errors import Blocked, LeaseSuperseded, PolicyError, RateLimited, Signal, Terminated
from stepwell.llm.records import Answer, error_answer

KIND = "rebuno_refusal"
CAUSES_MAX = 10

_MARKER = re.compile(r"rebuno_refusal: ([a-z_]+)(?: reason=([^\"'\\\n]*))?")


def refusal(error: BaseException) -> Answer | None:
    """Return the answer that stands for a refusal, None where the error is none."""
    match error:
        case PolicyError():
            return _answer(403, "denied", str(error))
        case RateLimited():
            return _answer(429, "rate_limited", error.reason)
        case Blocked():
            return _answer(403, "blocked")
        case Terminated():
            return _answer(403, "execution_terminal")
        case LeaseSuperseded():
            return _answer(409, "lease_superseded")
        case _:
            return None


def raise_for_refusal(exc: BaseException) -> None:
    """Raise the error that the kernel meant, where an error of a provider's SDK carries one; else return.

    try:
        answer = await client.responses.create(...)
    except openai.APIError as error:
        raise_for_refusal(error)
        raise
    """
    error = meant_by(exc)
    if error is not None:
        raise error from exc


def meant_by(exc: BaseException) -> Exception | Signal | None:
    """Return the error that the kernel meant, None where an error carries none."""
    for each in _causes(exc):
        found = _MARKER.search(str(each))
        error = None if found is None else _meant(found[1], found[2] or "")
        if error is not None:
            return error
    return None


def _answer(status: int, decision: str, reason: str = "") -> Answer:
    message = f"{KIND}: {decision}" + (f" reason={reason}" if reason else "")
    return error_answer(status, KIND, message)


def _meant(decision: str, reason: str) -> Exception | Signal | None:
    match decision:
        case "denied":
            return PolicyError(reason)
        case "rate_limited":
            return RateLimited(reason) if reason else RateLimited()
        case "blocked" | "execution_blocked":
            return Blocked("the execution waits for a person")
        case "execution_terminal":
            return Terminated("the execution has ended")
        case "lease_superseded":
            return LeaseSuperseded("a newer attempt has the execution")
        case _:
            return None


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """Give an error and what it was raised from, up to ten of them."""
    current: BaseException | None = exc
    for _ in range(CAUSES_MAX + 1):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


def word_refusal(word: str, reason: str) -> Answer:
    """Return the answer that stands for a decision of the kernel that lets nothing happen."""
    if word == "denied":
        return _answer(403, word, reason)
    if word == "rate_limited":
        return _answer(429, word, reason or RateLimited().reason)
    if word in ("blocked", "execution_blocked", "execution_terminal"):
        return _answer(403, word)
    return error_answer(502, "rebuno_unknown", f"the kernel says {word!r}, which this library does not know")
