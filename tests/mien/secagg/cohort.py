"""A cohort in one process: real devices, a real server, and a network that drops whom a test says."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mien.errors import CertificateError, CohortError
from mien.secagg import (
    Addends,
    Assignment,
    CohortTerms,
    DevicePolicy,
    DeviceRound,
    EcdsaSigner,
    Ed25519Signer,
    Identity,
    MemoryLog,
    NumberFormat,
    Opening,
    Profile,
    RoundConfig,
    ServerRound,
    Suite,
    VerifiedLeaf,
)
from mien.secagg.keys import RandomBytes, identity_id

SPKI = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
NUMBERS = NumberFormat(ring_bits=32, frac_bits=16, l2_clip=100.0, coordinate_clip=1.0, max_weight=64)
SIZE = 7
NUM_METRICS = 2


def drbg(label: str) -> RandomBytes:
    """Return a source of known bytes: SHAKE-256 of the label and a counter."""
    count = 0

    def take(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{label}/{count}".encode()).digest(size)

    return take


@functools.cache
def person(number: int, suite: Suite = Suite.ECDSA_P256) -> Identity:
    """Return device `number`; its "certificate" is its public key, which `verify` believes if it is one of ours."""
    if suite is Suite.ED25519:
        key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"ed%d" % number).digest())
        return Identity(identity_id(key.public_key()), key.public_key().public_bytes(*SPKI), Ed25519Signer(key))
    secret = int.from_bytes(hashlib.sha256(b"p256 %d" % number).digest(), "big") >> 1
    private = ec.derive_private_key(secret, ec.SECP256R1())
    signer = EcdsaSigner.of(private, deterministic=True)
    return Identity(identity_id(private.public_key()), private.public_key().public_bytes(*SPKI), signer)


def people(n: int, suite: Suite = Suite.ECDSA_P256) -> list[Identity]:
    """Return the first n devices."""
    return [person(number, suite) for number in range(n)]


@functools.cache
def verify(leaf: bytes) -> VerifiedLeaf:
    """Believe a leaf that is a public key in DER; everything else is nobody."""
    try:
        key = serialization.load_der_public_key(leaf)
    except ValueError as error:
        raise CertificateError("not one of ours") from error
    assert isinstance(key, ec.EllipticCurvePublicKey) or hasattr(key, "public_bytes_raw")
    return VerifiedLeaf(identity_id(key), key, 0)


def make_config(n: int, **changes: Any) -> RoundConfig:
    """Return a configuration for up to n devices, of which at least 3 must survive."""
    terms = CohortTerms(changes.pop("profile", Profile.MALICIOUS_SERVER), changes.pop("n_min", 3), n)
    config = RoundConfig(
        task_id=b"task".ljust(16, b"."),
        task_sha256=hashlib.sha256(b"task").digest(),
        round=7,
        attempt=1,
        model_sha256=hashlib.sha256(b"model").digest(),
        layout_sha256=hashlib.sha256(b"layout").digest(),
        statement_sha256=hashlib.sha256(b"graph").digest(),
        size=SIZE,
        num_metrics=NUM_METRICS,
        numbers=NUMBERS,
        cohort=terms,
    )
    return replace(config, **changes)


def assignment_of(config: RoundConfig) -> Assignment:
    """Return what a device knows that agrees with `config`."""
    return Assignment(
        config.task_id,
        config.task_sha256,
        config.model_sha256,
        config.layout_sha256,
        config.statement_sha256,
        config.size,
        config.num_metrics,
    )


POLICY = DevicePolicy(min_cohort=3, profiles=frozenset(Profile))


def make_device(config: RoundConfig, identity: Identity, **changes: Any) -> DeviceRound:
    """Return a device that accepts `config`, with known chance unless told otherwise."""
    settings: dict[str, Any] = {
        "identity": identity,
        "assignment": assignment_of(config),
        "policy": POLICY,
        "verify": verify,
        "log": MemoryLog(),
        "random_bytes": drbg(f"{identity.id.hex()}/{config.round}/{config.attempt}"),
    }
    invite = changes.pop("invite", ServerRound(config, verify=verify).invite)
    return DeviceRound(invite, **{**settings, **changes})


def make_addends(config: RoundConfig, seed: int) -> Addends:
    """Return a device's addends: an update within the clips, two metrics, a weight."""
    rng = np.random.default_rng(seed)
    update = rng.uniform(-1, 1, config.size).astype(np.float32)
    metrics = tuple(float(value) for value in rng.uniform(0, 8, config.num_metrics))
    return Addends(int(rng.integers(1, config.numbers.max_weight + 1)), update, metrics)


Tamper = Callable[[bytes, bytes], bytes]


def untouched(device: bytes, message: bytes) -> bytes:
    """Pass a message on as it is."""
    return message


@dataclass
class Cohort:
    """One attempt, step by step; `lost[stage]` are devices (by number) that are gone from that stage on.

    Stages: 1 keys, 3 shares, 5 masked vector, 7 consistency, 9 unmask.
    """

    config: RoundConfig
    devices: dict[bytes, DeviceRound]
    server: ServerRound
    addends: dict[bytes, Addends]
    lost: Mapping[int, Collection[bytes]] = field(default_factory=dict)
    tamper: Mapping[int, Tamper] = field(default_factory=dict)
    wire: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        config: RoundConfig,
        identities: Iterable[Identity],
        lost: Mapping[int, Collection[int]] | None = None,
        tamper: Mapping[int, Tamper] | None = None,
        threads: int = 1,
        **device: Any,
    ) -> Cohort:
        """Return a cohort of the identities."""
        known = list(identities)
        return cls(
            config=config,
            devices={identity.id: make_device(config, identity, **device) for identity in known},
            server=ServerRound(config, verify=verify, threads=threads),
            addends={identity.id: make_addends(config, number) for number, identity in enumerate(known)},
            lost={stage: {known[i].id for i in gone} for stage, gone in (lost or {}).items()},
            tamper=tamper or {},
        )

    def alive(self, stage: int) -> list[bytes]:
        """Return the devices that are still there at a stage and have not left of their own accord."""
        gone = {device for at, devices in self.lost.items() if at <= stage for device in devices}
        return [d for d in sorted(self.devices) if d not in gone and self.devices[d].stage != "Left"]

    def send(self, kind: int, device: bytes, message: bytes) -> bytes:
        """Put a message on the wire, which may change it."""
        changed = self.tamper.get(kind, untouched)(device, message)
        self.wire[kind, device] = changed
        return changed

    def advertise(self) -> dict[bytes, bytes]:
        for d in self.alive(1):
            self.server.accept_advertise(d, self.send(1, d, self.devices[d].advertise()))
        return self.server.close_keys()

    def share(self, rosters: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        for d in self.alive(3):
            if d in rosters:
                self.server.accept_shares(d, self.send(3, d, self.devices[d].share(self.send(2, d, rosters[d]))))
        return self.server.close_shares()

    def mask(self, delivered: Mapping[bytes, bytes]) -> bytes:
        for d in self.alive(5):
            if d not in delivered:
                continue
            try:
                masked = self.devices[d].mask(self.send(4, d, delivered[d]), self.addends[d])
            except CohortError:
                continue  # too few of its neighbours shared: it leaves, the others go on
            self.payloads[d] = masked.payload
            self.server.accept_masked(d, self.send(5, d, masked.message), masked.payload)
        return self.server.close_upload()

    def agree(self, survivors: bytes) -> dict[bytes, bytes]:
        for d in self.alive(7):
            if d in self.payloads:
                self.server.accept_consistency(d, self.send(7, d, self.devices[d].agree(self.send(6, d, survivors))))
        return self.server.close_consistency()

    def unmask(self, proofs: Mapping[bytes, bytes]) -> Opening:
        for d in self.alive(9):
            if d in proofs:
                self.server.accept_unmask(d, self.send(9, d, self.devices[d].unmask(self.send(8, d, proofs[d]))))
        return self.server.open()

    def unmask_at_once(self, survivors: bytes) -> Opening:
        """The honest-but-curious profile's last step."""
        for d in self.alive(9):
            if d in self.payloads:
                self.server.accept_unmask(d, self.send(9, d, self.devices[d].agree(self.send(6, d, survivors))))
        return self.server.open()

    def run(self) -> Opening:
        """Run the whole attempt; raises what the server raises."""
        survivors = self.mask(self.share(self.advertise()))
        if not self.config.cohort.profile.has_consistency_round:
            return self.unmask_at_once(survivors)
        return self.unmask(self.agree(survivors))
