"""What `admissions.json` holds: what certificates say of a phone's admission, and whom an owner counts by it."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import UnrecognizedExtension

from mien.errors import MienError
from mien.protocol.admission import ATTESTED_OID, OID, admitted_extension, attested_extension
from mien.secagg import Assignment, DevicePolicy, DeviceRound, EcdsaSigner, Identity, MemoryLog, ServerRound
from mien.secagg.graph import Profile
from mien.secagg.keys import identity_id
from mien.secagg.leaves import leaf_verifier
from tests.golden.secagg._certificates import NOW, authority, device_leaf, fixed_key, private_hex
from tests.golden.secagg._vectors import Recorder, _drawn, config_json, config_of
from tests.mien.secagg import mlkem

Json = dict[str, Any]

NOW_S = int(NOW.timestamp())
DAY_S = 86_400
PHONES = ((0, False), (0, False), (40, False), (40, False), (3, True), (3, True), (400, True))
"""Of each phone of the cohort, how many days ago it was admitted, and whether its key is attested."""
CONFIG = config_of(len(PHONES), Profile.MALICIOUS_SERVER, 12, 2)
ANYBODY = DevicePolicy(min_cohort=2)
verify = leaf_verifier(authority(), "default", lambda: NOW)


def admissions() -> Json:
    """Return certificates with extensions of every form, and a cohort that owners of different minds are told of."""
    server, first = ServerRound(CONFIG, verify=verify), _phone(0)
    messages = {}
    for number in range(len(PHONES)):
        phone, _ = _phone(number)
        own = phone._identity.id
        messages[own.hex()] = phone.advertise()
        server.accept_advertise(own, messages[own.hex()])
    roster = server.close_keys()[first[0]._identity.id]
    phone, recorder = first
    phone.advertise()
    phone.share(roster)
    return {
        "certificates": [_certificate(what, *extensions) for what, extensions in _extensions().items()],
        "config": config_json(CONFIG),
        "invite": server.invite.hex(),
        "authority": authority().public_bytes(Encoding.DER).hex(),
        "now": "2030-01-01T00:00:00Z",
        "devices": [
            {
                "id": phone._identity.id.hex(),
                "identity_private": private_hex(fixed_key("device 0")),
                "drawn": _drawn(recorder.drawn, len(PHONES) - 1),
            }
        ],
        "messages": {"1": {own: each.hex() for own, each in messages.items()}, "2": {"all": roster.hex()}},
        "owners": [_owner(policy, roster) for policy in _policies()],
    }


def _phone(number: int, policy: DevicePolicy = ANYBODY) -> tuple[DeviceRound, Recorder]:
    """Return a phone of the cohort under its owner's policy, at the beginning of the round."""
    days, is_attested = PHONES[number]
    extensions = admitted_extension(NOW_S - days * DAY_S), *((attested_extension(),) if is_attested else ())
    key, c, recorder = fixed_key(f"device {number}"), CONFIG, Recorder(f"device {number}")
    leaf = device_leaf(key, 100 + number, extensions)
    phone = DeviceRound(
        ServerRound(CONFIG, verify=verify).invite,
        identity=Identity(identity_id(key.public_key()), leaf, EcdsaSigner.of(key, deterministic=True)),
        assignment=Assignment(
            c.task_id, c.task_sha256, c.model_sha256, c.layout_sha256, c.statement_sha256, c.size, c.num_metrics
        ),
        policy=policy,
        verify=verify,
        log=MemoryLog(),
        random_bytes=recorder,
        encapsulate=mlkem.encapsulate,
    )
    return phone, recorder


def _policies() -> list[DevicePolicy]:
    """Return owners' policies; of the six other phones one is new, two are 3 days old, two 40, one 400."""
    found = []
    for days in (0, 1, 3, 4, 40, 41, 400, 401):
        for min_cohort in (2, 4):
            for counts_attested in (False, True):
                limit = NOW_S - days * DAY_S if days else math.inf
                found.append(DevicePolicy(min_cohort, limit, counts_attested))
    second = DevicePolicy(4, NOW_S - 3 * DAY_S - 0.5)
    return [*found, second, replace(second, counts_attested=True)]


def _owner(policy: DevicePolicy, roster: bytes) -> Json:
    phone, _ = _phone(0, policy)
    phone.advertise()
    try:
        phone.share(roster)
        ends = "ok"
    except MienError as error:
        ends = error.code
    assert phone.peers is not None
    limit = policy.admitted_by_unix_s
    return {
        "min_cohort": policy.min_cohort,
        "admitted_by_unix_ms": None if math.isinf(limit) else round(1000 * limit),
        "counts_attested": policy.counts_attested,
        "ends": ends,
        "peers": list(astuple(phone.peers)),
    }


def _extensions() -> dict[str, tuple[UnrecognizedExtension, ...]]:
    def admitted(der: str) -> tuple[UnrecognizedExtension, ...]:
        return (UnrecognizedExtension(OID, bytes.fromhex(der)),)

    def attested(der: str) -> tuple[UnrecognizedExtension, ...]:
        return (UnrecognizedExtension(ATTESTED_OID, bytes.fromhex(der)),)

    numbers = (0, 127, 128, 1_890_000_000, 2**31, 2**63 - 1)
    forms = ("02", "0200", "0201", "0101ff", "0201ff", "02020001", "020100ff", "0209" + "00" * 9, "0209" + "01" * 9)
    return {
        "of an earlier registrar": (),
        **{f"admitted at {number}": (admitted_extension(number),) for number in numbers},
        "attested": (attested_extension(),),
        "admitted and attested": (admitted_extension(NOW_S - DAY_S), attested_extension()),
        **{f"an admission that is {form}": admitted(form) for form in forms},
        **{f"an attestation that is {form}": attested(form) for form in ("0101ff", "05", "050000", "0501")},
    }


def _certificate(what: str, *extensions: UnrecognizedExtension) -> Json:
    leaf = device_leaf(fixed_key("device 0"), 100, extensions)
    try:
        found = verify(leaf)
    except MienError as error:
        return {"what": what, "der": leaf.hex(), "ends": error.code}
    said = {"admitted_unix_s": found.admitted_unix_s, "is_attested": found.is_attested}
    return {"what": what, "der": leaf.hex(), "ends": "ok", **said}
