"""Sealing: only the master key, and only the place it was sealed for, gives a secret back."""

import stat
from pathlib import Path

import msgspec
import pytest

from kernel.control import sealing
from kernel.control.sealing import Sealer, SecretField, generated_master_key
from kernel.domain.errors import Misconfigured
from schemas.control import SealedSecret

SECRET = b"a secret of an agent"


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return Sealer("correct horse battery staple")


@pytest.fixture(scope="module")
def sealed(sealer: Sealer) -> SealedSecret:
    return sealer.seal(SECRET, tenant="default", agent_id="a", field="secret")


def test_a_sealed_secret_is_unsealed_with_the_same_master_key(sealed: SealedSecret) -> None:
    again = Sealer("correct horse battery staple")

    assert again.unseal(sealed, tenant="default", agent_id="a", field="secret") == SECRET


def test_the_derived_key_never_changes() -> None:
    # A golden value: another one would make every secret in every record unreadable.
    assert Sealer("correct horse battery staple").key_id == "f121696ede40f85d"
    kept = SealedSecret(
        key_id="f121696ede40f85d",
        nonce=bytes(12),
        ciphertext=bytes.fromhex("2955a73db890e112a7b6bf4bb62536cf96e71b757593eb91d9a490ebc21d69650cd3b222"),
    )
    assert Sealer("correct horse battery staple").unseal(kept, tenant="t", agent_id="a", field="secret") == SECRET


def test_nothing_of_the_secret_shows(sealer: Sealer, sealed: SealedSecret) -> None:
    again = sealer.seal(SECRET, tenant="default", agent_id="a", field="secret")

    assert SECRET not in sealed.ciphertext
    assert again.ciphertext != sealed.ciphertext


def test_another_master_key_is_named_in_the_refusal(sealed: SealedSecret) -> None:
    other = Sealer("another master key")

    with pytest.raises(Misconfigured, match=f"sealed with the master key {sealed.key_id}.*is {other.key_id}") as caught:
        other.unseal(sealed, tenant="default", agent_id="a", field="secret")
    assert "another master key" not in str(caught.value).replace("with the master key", "")


@pytest.mark.parametrize(
    ("tenant", "agent_id", "field"),
    [("other", "a", "secret"), ("default", "b", "secret"), ("default", "a", "next_secret")],
)
def test_a_sealed_secret_cannot_be_moved(
    sealer: Sealer, sealed: SealedSecret, tenant: str, agent_id: str, field: SecretField
) -> None:
    with pytest.raises(Misconfigured, match=f"the {field} of agent {agent_id} of tenant {tenant} cannot be unsealed"):
        sealer.unseal(sealed, tenant=tenant, agent_id=agent_id, field=field)


@pytest.mark.parametrize("change", [{"nonce": b"short"}, {"nonce": bytes(12)}, {"ciphertext": b""}])
def test_a_damaged_sealed_secret_is_refused(sealer: Sealer, sealed: SealedSecret, change: dict[str, bytes]) -> None:
    damaged = msgspec.structs.replace(sealed, **change)

    with pytest.raises(Misconfigured, match="cannot be unsealed"):
        sealer.unseal(damaged, tenant="default", agent_id="a", field="secret")


@pytest.mark.parametrize("key", ["", "fifteen bytes.."])
def test_a_short_master_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(Misconfigured, match="at least 16 bytes") as caught:
        Sealer(key)
    assert not key or key not in str(caught.value)


def test_a_master_key_is_counted_in_bytes() -> None:
    assert Sealer("éééééééé").key_id


def test_the_generated_master_key_is_kept_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "master.key"

    key = generated_master_key(path)

    assert generated_master_key(path) == key
    assert len(key) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_of_two_first_starts_one_key_wins_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "master.key"
    link = sealing.os.link

    def link_second(draft: Path, target: Path) -> None:
        target.write_text("the key of the other process\n")
        target.chmod(0o600)
        link(draft, target)

    monkeypatch.setattr(sealing.os, "link", link_second)

    assert generated_master_key(path) == "the key of the other process"
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    generated_master_key(path)
    path.chmod(0o640)

    with pytest.raises(Misconfigured, match="chmod 600"):
        generated_master_key(path)


def test_a_key_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    with pytest.raises(Misconfigured, match="cannot be used"):
        generated_master_key(blocked / "master.key")
