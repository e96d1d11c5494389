"""Sealing of agent secrets: what the control stream holds is readable only with the master key.

AES-256-GCM. The key is derived with scrypt rather than HKDF, because the master key may be any text, a weak passphrase
too, and whoever holds a copy of the stream could guess at it offline: scrypt makes every guess dear, and costs us one
moment a process.
"""

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from kernel.domain.errors import Misconfigured
from schemas.control import SealedSecret

MASTER_KEY_BYTES_MIN = 16

SecretField = Literal["secret", "next_secret"]

# Every process derives the same key from the text alone, so the salt is fixed. It and the costs are part of the format.
_SALT = b"stepwell/master-key/1"
_COST_N, _COST_R, _COST_P = 2**14, 8, 1
_KEY_BYTES = 32
_NONCE_BYTES = 12
_KEY_ID_DIGITS = 16
_GENERATED_KEY_BYTES = 32


class Sealer:
    """Seals and unseals with one master key. Deriving the key takes a moment: make one per process."""

    def __init__(self, master_key: str) -> None:
        """Raises Misconfigured for a master key below 16 bytes of UTF-8."""
        text = master_key.encode()
        if len(text) < MASTER_KEY_BYTES_MIN:
            raise Misconfigured(f"STEPWELL_MASTER_KEY is too short: it takes at least {MASTER_KEY_BYTES_MIN} bytes")
        key = Scrypt(salt=_SALT, length=_KEY_BYTES, n=_COST_N, r=_COST_R, p=_COST_P).derive(text)
        self._cipher = AESGCM(key)
        self.key_id = hashlib.sha256(b"stepwell/key-id/1\n" + key).hexdigest()[:_KEY_ID_DIGITS]
        """A short digest of the derived key: it tells keys apart and says nothing about them."""

    def seal(self, secret: bytes, *, tenant: str, agent_id: str, field: SecretField) -> SealedSecret:
        nonce = os.urandom(_NONCE_BYTES)
        ciphertext = self._cipher.encrypt(nonce, secret, _place(tenant, agent_id, field))
        return SealedSecret(key_id=self.key_id, nonce=nonce, ciphertext=ciphertext)

    def unseal(self, sealed: SealedSecret, *, tenant: str, agent_id: str, field: SecretField) -> bytes:
        """Return the secret. Raises Misconfigured where another master key sealed it, or it belongs elsewhere."""
        whose = f"the {field} of agent {agent_id} of tenant {tenant}"
        if sealed.key_id != self.key_id:
            raise Misconfigured(
                f"{whose} was sealed with the master key {sealed.key_id}, and STEPWELL_MASTER_KEY is {self.key_id}: "
                "start with the master key that the record was written with"
            )
        try:
            return self._cipher.decrypt(sealed.nonce, sealed.ciphertext, _place(tenant, agent_id, field))
        except (InvalidTag, ValueError) as error:
            raise Misconfigured(
                f"{whose} cannot be unsealed: it is damaged, or was sealed for another place"
            ) from error


def generated_master_key(path: Path) -> str:
    """Return the master key kept in a file that only its owner may read; the first call makes it.

    For `stepwell dev` alone. Raises Misconfigured where the file is open to others or cannot be used.
    """
    try:
        if not path.exists():
            _make_key_file(path)
        if path.stat().st_mode & 0o077:
            raise Misconfigured(f"{path} may be read by others: run `chmod 600 {path}`, or set STEPWELL_MASTER_KEY")
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"the master key in {path} cannot be used: {error}") from error


def _make_key_file(path: Path) -> None:
    # Linked into place when it is whole: a crash leaves no half of a key, and of two starts one key wins for both.
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_GENERATED_KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _place(tenant: str, agent_id: str, field: SecretField) -> bytes:
    """Bound to the ciphertext, so that one agent's secret cannot be passed off as another's. No part holds a LF."""
    return "\n".join(("stepwell/secret/1", tenant, agent_id, field)).encode()
