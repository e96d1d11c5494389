"""Checksums of entries in the log: the headers and the payload are each covered, so damage to one is told apart."""

import xxhash


def checksum(*, tenant: str, execution_id: str, entry_id: str, payload: bytes) -> str:
    """Return `<headers>-<payload>`, two xxh3_64 in hex; the first covers the second and everything outside."""
    body = xxhash.xxh3_64_hexdigest(payload)
    head = "\n".join((tenant, execution_id, entry_id, body))
    return f"{xxhash.xxh3_64_hexdigest(head.encode())}-{body}"


def are_headers_sound(found: str, *, tenant: str, execution_id: str, entry_id: str) -> bool:
    """Whether the headers are the ones that were written, whatever became of the payload."""
    head, _, body = found.partition("-")
    text = "\n".join((tenant, execution_id, entry_id, body))
    return head == xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def is_payload_sound(found: str, payload: bytes) -> bool:
    """Whether the payload is the one that was written."""
    return found.partition("-")[2] == xxhash.xxh3_64_hexdigest(payload)
