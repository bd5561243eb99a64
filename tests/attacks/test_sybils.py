"""A thief of the coordinator's folder makes no phone, nor does a phone or an old credential."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from mien.errors import MienError, RateLimitedError, UnreachableError
from mien.protocol.v1 import registrar_pb2, registrar_pb2_grpc
from tests.coordinator.registrar.running import CONFIG, LocalRegistrar, local_registrar
from tests.integration.real_fleet import real_fleet

ASKED = registrar_pb2.CreateInviteRequest(population="default")


@pytest.fixture(scope="module")
def registrar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistrar]:
    with local_registrar(tmp_path_factory.mktemp("sybils") / "R") as running:
        yield running


def invited(registrar: LocalRegistrar, chain_pem: bytes, key_pem: bytes) -> bool:
    """Return whether credentials get an invite."""
    try:
        with registrar.operators(chain_pem, key_pem) as stub:
            return bool(stub.CreateInvite(ASKED, timeout=120).url)
    except (UnreachableError, MienError):
        return False


def test_nothing_in_a_coordinators_folder_gets_an_invite(registrar: LocalRegistrar, tmp_path: Path) -> None:
    """Every key with every certificate, and what the coordinator's authority can sign: p02."""
    now = datetime.now(UTC)
    home = CoordinatorHome.create(tmp_path / "C", CoordinatorConfig("localhost:7443"), now)
    home.trust(pki.to_pem(registrar.home.ca()), replace=False)
    registrar.home.trust(home.ca_path.read_bytes(), replace=True)
    keys = [path.read_bytes() for path in home.folder.glob("*.key") if b"PRIVATE KEY" in path.read_bytes()]
    chains = [path.read_bytes() for path in home.folder.glob("*.pem")]
    assert len(keys) >= 2
    assert len(chains) >= 3
    assert not any(invited(registrar, chain, key) for chain, key in product(chains, keys))
    authority, key = home.authority(), ec.generate_private_key(ec.SECP256R1())
    leaves = [
        pki.issue_operator_leaf(authority, "registrar", now),
        pki.issue_replica_leaf(authority, "registrar", now),
        pki.issue_server_leaf(authority, ["localhost"], now),
    ]
    assert not any(invited(registrar, leaf.chain_pem, leaf.key_pem) for leaf in leaves)
    device = pki.issue_device_leaf(authority, key.public_key(), "default", now)
    assert not invited(registrar, pki.to_pem(device) + authority.certificate_pem, pki.key_to_pem(key))
    assert invited(registrar, registrar.operator.chain_pem, registrar.operator.key_pem)


def test_what_the_phones_authority_signed_does_not_pass_the_operators_handshake(registrar: LocalRegistrar) -> None:
    """A phone, and operators' certificates of programs before the operators had an authority of their own."""
    phone, devices_ca = registrar.admitted(), registrar.home.authority()
    old = pki.issue_operator_leaf(devices_ca, "coordinator", datetime.now(UTC))
    for chain, key in (
        (pki.to_pem(phone.certificate) + devices_ca.certificate_pem, pki.key_to_pem(phone.key)),
        (old.chain_pem, old.key_pem),
    ):
        with pytest.raises(UnreachableError), registrar.operators(chain, key) as stub:
            stub.CreateInvite(ASKED, timeout=20)


def test_invites_are_rationed_and_each_is_in_the_audit_log(tmp_path: Path) -> None:
    with local_registrar(tmp_path / "R", replace(CONFIG, invites_per_day=3)) as registrar:
        for _ in range(3):
            registrar.invite()
        with pytest.raises(RateLimitedError, match="invites_per_day"):
            registrar.invite()
    with registrar.home.store() as store:
        entries = store.audit(lambda log, db: log.read(db))
    made = [entry for entry in entries if entry.action == "invite.make"]
    left = [(entry.actor, json.loads(entry.detail_json)["left_today"]) for entry in made]
    assert left == [("registrar", 2), ("registrar", 1), ("registrar", 0)]


def test_the_folder_of_a_running_coordinator_makes_no_phone(tmp_path: Path) -> None:
    """p02 with both servers as processes: each key with each certificate, at both ports."""
    with real_fleet(tmp_path) as fleet:
        folder, host = fleet.coordinator.home.folder, fleet.registrar.resolve().config
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        keys = [data for data in files if b"PRIVATE KEY" in data]
        chains = [data for data in files if data.startswith(b"-----BEGIN CERTIFICATE")]
        assert len(keys) >= 2
        assert len(chains) >= 3
        root = pki.to_pem(fleet.registrar.ca())
        for address, (chain, key) in product((host.admin_address, host.address), product(chains, keys)):
            tls = grpc.ssl_channel_credentials(root, key, chain)
            with grpc.secure_channel(address, tls) as channel, pytest.raises(grpc.RpcError):
                registrar_pb2_grpc.RegistrarAdminStub(channel).CreateInvite(ASKED, timeout=20)
        assert fleet.invite("default").startswith("mien://join")
