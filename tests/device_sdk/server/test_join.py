"""Joining a real registrar over real TLS: what is pinned, what is repeated, and what a wrong clock is told."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.keys import pki
from device_sdk.device import Device
from device_sdk.program.owner_status import sentences
from device_sdk.server import join as joining
from device_sdk.server.certificates import fingerprint
from device_sdk.server.identity import Identity, IdentityFiles, renewal_due
from device_sdk.server.join import join, relocate, renew
from device_sdk.storage.home import Home
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import (
    TABLE,
    AlreadyExistsError,
    CertificateError,
    CorruptDataError,
    DiskFullError,
    FingerprintError,
    InviteError,
    KeyStoreError,
    MienError,
    UnreachableError,
)
from mien.log.checkpoints import WITNESS, NoteKey
from mien.protocol.ids import PopulationId
from mien.protocol.invite import Invite
from simulation.testing import free_port
from tests.coordinator.registrar.running import CONFIG, LocalRegistrar, local_registrar
from tests.device_sdk.clocks import ShiftedClock
from tests.device_sdk.programs import mien_device
from tests.helpers import one_caller
from tests.mien.secagg.cohort import make_config

DAY_S = 86400.0
ROUND = make_config(7)


@pytest.fixture(scope="module")
def registrar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistrar]:
    config = replace(CONFIG, max_join_failures=1000)
    with local_registrar(tmp_path_factory.mktemp("registrar") / "R", config) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "device")


@pytest.fixture
def files(home: Home) -> IdentityFiles:
    return IdentityFiles(home, FileKeyStore(home.folder / "keys"))


def invite_of(registrar: LocalRegistrar, **changes: str) -> Invite:
    """Return an invite that names the port at which the test's registrar really listens."""
    return replace(registrar.invite(), registrar_address=registrar.join_address, **changes)


def attempt(invite: Invite, files: IdentityFiles, *, shift_s: float = 0.0) -> Identity:
    return join(invite, files, ShiftedClock(shift_s), random.Random(0))


def refusal(invite: Invite, files: IdentityFiles, *, shift_s: float = 0.0) -> MienError:
    with pytest.raises(MienError) as error:
        attempt(invite, files, shift_s=shift_s)
    assert not files.joined(), "a refused join must leave nothing behind"
    assert invite.token not in error.value.message
    return error.value


def test_a_device_joins_and_is_who_its_key_says(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    identity = attempt(invite_of(registrar), files)
    assert identity.device_id == pki.device_id(identity.key.public_key())
    assert identity.population == "default"
    assert identity.coordinator_address == CONFIG.coordinator_address
    assert fingerprint(identity.coordinator_ca) == pki.fingerprint(registrar.coordinator.certificate)
    again = files.load()
    assert (again.device_id, again.certificate) == (identity.device_id, identity.certificate)


def test_the_private_key_is_never_on_disk_in_clear(registrar: LocalRegistrar, home: Home, files: IdentityFiles) -> None:
    identity = attempt(invite_of(registrar), files)
    secret = identity.key.private_numbers().private_value.to_bytes(32, "big")
    assert all(secret not in path.read_bytes() for path in home.folder.rglob("*") if path.is_file())
    assert all(path.stat().st_mode & 0o077 == 0 for path in home.folder.rglob("*") if path.is_file())
    assert "PrivateKey" not in repr(identity)


def test_the_same_invite_again_gives_the_same_device(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    invite = invite_of(registrar)
    assert attempt(invite, files).certificate == attempt(invite, files).certificate


def test_a_join_whose_answer_was_lost_is_repeated_with_the_same_key(
    registrar: LocalRegistrar, home: Home, files: IdentityFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    invite = invite_of(registrar)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "save", crash)
        with pytest.raises(KeyboardInterrupt):
            attempt(invite, files)
    assert not files.joined()
    # The token is used up at the registrar, but by this very key.
    first = registrar.home
    identity = attempt(invite, IdentityFiles(home, FileKeyStore(home.folder / "keys")))
    assert first is registrar.home
    assert identity.device_id == pki.device_id(files.key().public_key())


def test_a_new_invite_of_the_same_fleet_keeps_the_key(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    first = attempt(invite_of(registrar), files)
    second = attempt(invite_of(registrar), files)
    assert first.device_id == second.device_id
    assert first.certificate != second.certificate


def test_an_invite_of_another_fleet_is_refused(registrar: LocalRegistrar, files: IdentityFiles, tmp_path: Path) -> None:
    attempt(invite_of(registrar), files)
    with local_registrar(tmp_path / "other") as other, pytest.raises(AlreadyExistsError, match="another `home`"):
        attempt(invite_of(other), files)


def test_a_registrar_with_another_fingerprint_never_sees_the_token(
    registrar: LocalRegistrar, files: IdentityFiles
) -> None:
    invite = invite_of(registrar)
    error = refusal(replace(invite, registrar_ca_sha256="0" * 64), files)
    assert isinstance(error, FingerprintError)
    assert "do not join" in error.message
    # Unused: the right fingerprint still joins with it.
    attempt(invite, files)


def test_a_coordinator_with_another_fingerprint_is_refused(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    assert isinstance(refusal(invite_of(registrar, coordinator_ca_sha256="0" * 64), files), FingerprintError)


def test_unknown_and_expired_invites_are_refused(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    assert isinstance(refusal(invite_of(registrar, token="A" * 43), files), InviteError)
    invite = replace(registrar.invite(valid_s=60), registrar_address=registrar.join_address)
    registrar.clock.ahead = timedelta(seconds=61)
    try:
        error = refusal(invite, files)
    finally:
        registrar.clock.ahead = timedelta(0)
    assert isinstance(error, InviteError)
    assert "expired" in error.message


def test_a_used_invite_is_refused(registrar: LocalRegistrar, files: IdentityFiles, tmp_path: Path) -> None:
    invite = invite_of(registrar)
    attempt(invite, files)
    other = Home.open(tmp_path / "other")
    error = refusal(invite, IdentityFiles(other, FileKeyStore(other.folder / "keys")))
    assert isinstance(error, InviteError)


def test_nobody_at_the_address(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    address = f"127.0.0.1:{free_port()}"
    error = refusal(replace(invite_of(registrar), registrar_address=address), files)
    assert isinstance(error, UnreachableError)
    assert address in error.message


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_something_else_at_the_address(
    registrar: LocalRegistrar, files: IdentityFiles, greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "fetch_unverified_chain", lambda a: real(a, timeout_s=0.5))
    with one_caller(lambda caller: _answer(caller, greeting)) as port:
        error = refusal(replace(invite_of(registrar), registrar_address=f"127.0.0.1:{port}"), files)
    assert isinstance(error, UnreachableError)


real = joining.fetch_unverified_chain


def _answer(caller: socket.socket, greeting: bytes) -> None:
    caller.recv(65536)
    if greeting:
        caller.sendall(greeting)
    else:
        # Says nothing until the other side gives up.
        caller.recv(65536)


def test_a_clock_a_day_behind_is_told_apart_from_a_wrong_certificate(
    registrar: LocalRegistrar, files: IdentityFiles
) -> None:
    error = refusal(invite_of(registrar), files, shift_s=-DAY_S)
    assert isinstance(error, CertificateError)
    # Certificates are backdated by ten minutes; the registrar's is as old as this module's run.
    assert re.search(r"23 h (50|4\d) min", error.message)
    assert "clock is behind" in error.message


def test_a_clock_a_day_ahead_is_told_by_the_registrars(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    invite = invite_of(registrar)
    # A minute more than a day: a slow answer must not make it less than one.
    error = refusal(invite, files, shift_s=DAY_S + 60)
    assert isinstance(error, CertificateError)
    assert "1 day ahead of the registrar's" in error.message
    # Found before the token was sent.
    attempt(invite, files)


def test_a_clock_a_year_ahead_finds_the_certificate_ended(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    error = refusal(invite_of(registrar), files, shift_s=365 * DAY_S)
    assert isinstance(error, CertificateError)
    assert "275 days" in error.message or "274 days" in error.message


def test_a_full_disk_leaves_nothing_half_written(registrar: LocalRegistrar, home: Home, files: IdentityFiles) -> None:
    invite = invite_of(registrar)
    files.key()
    ended = mien_device("join", invite.to_url(), "--home", home.folder, "--keystore", "file", largest_file=256)
    assert ended.returncode == TABLE[DiskFullError].exit_code
    assert ended.stderr.count("\n") == 1
    assert "no space left" in ended.stderr
    assert f"Code of this fleet: {invite.code()}\n" in ended.stdout, "to be compared, whether joining works or not"
    assert not files.joined()
    assert [path.name for path in home.folder.iterdir() if path.name.startswith(".")] == []
    assert attempt(invite, files).device_id == pki.device_id(files.key().public_key())


def test_renewal_keeps_the_device_and_gives_a_later_certificate(
    registrar: LocalRegistrar, files: IdentityFiles
) -> None:
    identity = attempt(invite_of(registrar), files)
    registrar.clock.ahead = timedelta(seconds=90)
    try:
        renewed = renew(identity, files, ShiftedClock(), random.Random(0))
    finally:
        registrar.clock.ahead = timedelta(0)
    assert renewed.device_id == identity.device_id
    assert renewed.certificate.not_valid_after_utc > identity.certificate.not_valid_after_utc
    assert files.load().certificate == renewed.certificate
    assert files.load().invite_sha256 == identity.invite_sha256


def test_a_renewal_moves_nobody_to_another_population(registrar: LocalRegistrar, files: IdentityFiles) -> None:
    """Where sums would be counted from nothing, and a promised epsilon with them."""
    identity = attempt(invite_of(registrar), files)
    with pytest.raises(CertificateError, match="into another population"):
        renew(replace(identity, population=PopulationId("night")), files, ShiftedClock(), random.Random(0))
    assert files.load().certificate == identity.certificate


def test_sums_count_for_the_population_that_a_running_program_moved_to(
    registrar: LocalRegistrar, home: Home, files: IdentityFiles
) -> None:
    attempt(invite_of(registrar), files)
    with Device.open(home.folder, options={"keystore": "file"}) as device:
        assert device.attempts.participations() == ()
        moved = replace(registrar.invite("night"), registrar_address=registrar.join_address)
        assert device.join(moved.to_url()).population == "night"
        device.attempts.begin(ROUND)
        device.attempts.record_masked(ROUND.attempt_id)
        assert device.status().num_private_sums == 1
    with Device.open(home.folder, options={"keystore": "file"}) as device:
        assert device.attempts.participations() == (ROUND,)


def test_a_device_pins_further_witnesses_and_neither_renewal_nor_invite_brings_others(tmp_path: Path) -> None:
    keys = tuple(str(NoteKey.named(WITNESS, bytes([n]) * 32)) for n in (1, 2, 3))
    folder = tmp_path / "registrar"
    home = Home.at(tmp_path / "phone")
    home.folder.mkdir()
    files = IdentityFiles(home, FileKeyStore(home.folder / "keys"))
    with local_registrar(folder, replace(CONFIG, witnesses=keys[:2], witnesses_needed=1)) as registrar:
        identity = attempt(invite_of(registrar), files)
        assert identity.quorum.needed == 1
        assert tuple(map(str, files.load().quorum.keys)) == keys[:2]
        fresh = replace(identity, further_witnesses=keys[2:], witnesses_needed=1)
        assert renew(fresh, files, ShiftedClock(), random.Random(0)).further_witnesses == keys[2:]
        before = replace(identity, further_witnesses=(), witnesses_needed=0)
        assert renew(before, files, ShiftedClock(), random.Random(0)).quorum == identity.quorum
        own = str(NoteKey.named(WITNESS, bytes([9]) * 32))
        for known in (before, replace(fresh, witness_key=own)):
            files.save(known)
            anew = attempt(invite_of(registrar), files)
            assert anew.invite_sha256 != identity.invite_sha256
            assert anew.witness_key == known.witness_key
            assert anew.further_witnesses == (known.further_witnesses or identity.further_witnesses)
            assert anew.witnesses_needed == 1
    stored = json.loads(home.identity.read_text())
    del stored["further_witnesses"], stored["witnesses_needed"]
    home.identity.write_text(json.dumps(stored))
    assert files.load().quorum.needed == 0  # as a phone that joined before


def test_a_phone_follows_its_fleet_and_stays_who_it_is(
    registrar: LocalRegistrar, files: IdentityFiles, tmp_path: Path
) -> None:
    joined = attempt(invite_of(registrar), files)
    files.save(replace(joined, registrar_address="localhost:1", coordinator_address="localhost:2"))
    invite = invite_of(registrar)
    there = relocate(files.load(), invite, files, ShiftedClock(), random.Random(0))
    assert (there.registrar_address, there.coordinator_address) == (
        invite.registrar_address,
        joined.coordinator_address,
    )
    assert (there.device_id, there.invite_sha256) == (joined.device_id, joined.invite_sha256)
    assert files.load().registrar_address == invite.registrar_address
    foreign = replace(invite, coordinator_ca_sha256="0" * 64)
    with pytest.raises(AlreadyExistsError, match="another fleet"):
        relocate(there, foreign, files, ShiftedClock(), random.Random(0))
    other = Home.open(tmp_path / "another phone")
    assert attempt(invite, IdentityFiles(other, FileKeyStore(other.folder / "keys"))).device_id != joined.device_id


def test_renewal_is_due_in_the_last_third_of_a_certificates_life(
    registrar: LocalRegistrar, files: IdentityFiles
) -> None:
    identity = attempt(invite_of(registrar), files)
    assert not renewal_due(identity, ShiftedClock())
    assert not renewal_due(identity, ShiftedClock(4.6 * DAY_S))
    assert renewal_due(identity, ShiftedClock(4.7 * DAY_S))
    assert renewal_due(identity, ShiftedClock(30 * DAY_S))


def test_its_owner_hears_that_a_certificate_ends_soon_only_where_a_renewal_is_due(
    registrar: LocalRegistrar, home: Home, files: IdentityFiles
) -> None:
    attempt(invite_of(registrar), files)

    def told(clock: ShiftedClock) -> str:
        with Device.open(home.folder, options={"keystore": "file"}, clock=clock) as device:
            return " ".join(sentence for _, sentence in sentences(device.status(), clock.now()))

    assert all("ends soon" not in told(ShiftedClock(days * DAY_S)) for days in (0, 2, 4.6))
    assert "The certificate ends soon: mien-device renew" in told(ShiftedClock(4.7 * DAY_S))


def test_looking_at_a_device_makes_no_log_of_private_sums(
    registrar: LocalRegistrar, home: Home, files: IdentityFiles
) -> None:
    """Nor does it need room for one: whoever looks may do so because the disk is full."""
    attempt(invite_of(registrar), files)
    with Device.open(home.folder, options={"keystore": "file"}) as device:
        assert device.status().num_private_sums == 0
        assert not home.attempts.exists()
        assert device.attempts.participations() == ()
        assert home.attempts.exists()
        assert device.status().num_private_sums == 0


def test_a_device_that_has_not_joined_says_so(files: IdentityFiles) -> None:
    with pytest.raises(InviteError, match="not joined"):
        files.load()


def test_a_damaged_identity_is_refused(registrar: LocalRegistrar, home: Home, files: IdentityFiles) -> None:
    attempt(invite_of(registrar), files)
    stored = json.loads(home.identity.read_text())
    for change in (
        {"certificate": "AAAA"},
        {"certificate": "not base64"},
        {"registrar_ca": stored["coordinator_ca"]},
        {"format": 9},
        {"population": None, "certificate": None},
    ):
        home.identity.write_text(json.dumps({**stored, **change}))
        with pytest.raises((CorruptDataError, CertificateError)):
            files.load()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 9}', '{"format": 1}'])
def test_what_a_damaged_identity_asks_for_helps(
    registrar: LocalRegistrar, home: Home, files: IdentityFiles, damage: str
) -> None:
    """A new invite alone does not: joining looks at the identity first."""
    attempt(invite_of(registrar), files)
    home.identity.write_text(damage)
    again = invite_of(registrar)
    remedy = f"restore {home.identity} from a copy, or delete it and join again with a new invite"
    with pytest.raises(CorruptDataError, match=re.escape(remedy)):
        attempt(again, files)
    home.identity.unlink()
    attempt(again, files)
    assert files.load().device_id


def test_a_swapped_private_key_is_refused(
    registrar: LocalRegistrar, home: Home, files: IdentityFiles, tmp_path: Path
) -> None:
    attempt(invite_of(registrar), files)
    other = Home.open(tmp_path / "other")
    IdentityFiles(other, FileKeyStore(other.folder / "keys")).key()
    home.identity_key.write_bytes(other.identity_key.read_bytes())
    with pytest.raises(KeyStoreError, match="does not open"):
        files.load()
