"""Spelling of every id on the wire and in the log.

Ids are made from data (a time and random bytes handed in), so that whoever needs determinism can supply both.
"""

import re
import secrets
import time

AGENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
TENANT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
STEP_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", re.ASCII)

DEFAULT_TENANT = "default"
RANDOM_BYTES = 10


def uuid7_from(unix_ms: int, random: bytes) -> str:
    """Return the dashed, lower-case UUIDv7 of a time in milliseconds and ten random bytes."""
    tail = int.from_bytes(random[:RANDOM_BYTES], "big")
    high = (unix_ms & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | (tail >> 68 & 0x0FFF)
    low = 0x8000_0000_0000_0000 | (tail & 0x3FFF_FFFF_FFFF_FFFF)
    text = f"{high:016x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_uuid7() -> str:
    """Return a fresh UUIDv7 from the system's clock and randomness."""
    return uuid7_from(time.time_ns() // 1_000_000, secrets.token_bytes(RANDOM_BYTES))


def uuid7_ms(uuid: str) -> int:
    """Return the unix time in milliseconds that a dashed UUIDv7 carries."""
    return int(uuid[:8] + uuid[9:13], 16)


def parse_uuid(text: str) -> str | None:
    """Return the canonical spelling of a dashed UUID in either case, or None for every other text."""
    return text.lower() if _UUID.fullmatch(text) else None


def uuid_bytes(uuid: str) -> bytes:
    """Return the sixteen bytes of a dashed UUID."""
    return bytes.fromhex(uuid.replace("-", ""))


def uuid_text(raw: bytes) -> str:
    """Return the dashed spelling of sixteen UUID bytes."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
