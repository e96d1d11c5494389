"""Client bodies (args, input, output, result, error) as the record keeps them, and the usage of a step."""

import msgspec

INLINE_BYTES_MAX = 8 * 1024
NULL = b"null"


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One JSON value: its text where small, else the log entry that carries it.

    `seq` is the entry's sequence in the execution's shard and `place` the member of that entry: `args`, `input`,
    `output`, `result`, `error` or `settle.<index>`. `json` is empty exactly when the value has to be fetched.
    """

    json: bytes
    seq: int
    place: str
    size_bytes: int


class Spilled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One JSON value whose text stands outside of its entry: pieces in the shard's stream of bodies, then a rest.

    `pieces` are sequences of that stream, `rest` is what follows the last of them, and `sha256` that of the whole text.
    """

    size_bytes: int
    sha256: bytes
    pieces: tuple[int, ...]
    rest: str


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one LLM call or of a whole execution; unknown counts are 0."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


def body_of(json: bytes, *, seq: int, place: str, spilled: Spilled | None = None) -> Body:
    """Return the Body of a value that stands at `place` of the entry `seq`, inline when it is small.

    `spilled` is where its text is instead, if it is not there.
    """
    if spilled is not None:
        return Body(json=b"", seq=seq, place=place, size_bytes=spilled.size_bytes)
    if len(json) <= INLINE_BYTES_MAX:
        return Body(json=json, seq=seq, place=place, size_bytes=len(json))
    return Body(json=b"", seq=seq, place=place, size_bytes=len(json))


def reason_body(seq: int, reason: str, **more: str) -> Body:
    """Return the error object that the kernel itself gives a step. Small, so always inline."""
    json = msgspec.json.encode({"reason": reason, **more})
    return Body(json=json, seq=seq, place="", size_bytes=len(json))
