"""What the vector files hold, made by `mien.secagg` itself from fixed keys and fixed chance."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.keys import pki
from mien.errors import MienError
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
    Profile,
    RoundConfig,
    ServerRound,
    Suite,
    VerifiedLeaf,
    shamir,
)
from mien.secagg.canonical import leaf_hash, members_hash, merkle_tree, pack_members, tagged_hash
from mien.secagg.config import VERSION
from mien.secagg.graph import permutation
from mien.secagg.keys import (
    SMALL_ORDER_ED25519,
    MaskKey,
    SealingKey,
    commitment_b,
    cover,
    derive,
    identity_id,
    pair_seed,
    seal_shares,
    self_seed,
)
from mien.secagg.masks import Words, WordStream, add_masks
from mien.secagg.pipeline import encode
from mien.secagg.quantise import pack, quantise_metrics, quantise_update
from mien.secagg.roster import Topology
from mien.secagg.vector import VectorLayout
from mien.secagg.wire import Advertise, Kind, Shares, statement_advertise, statement_shares
from tests.golden.secagg._certificates import NOW, authority, device_leaf, fixed_key, private_hex
from tests.mien.secagg import mlkem

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
ED25519_ORDER = 2**252 + 27742317777372353535851937790883648493
SPKI = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
Json = dict[str, Any]


def known(label: str, size: int = 32) -> bytes:
    """Return bytes that follow from a label: SHAKE-256."""
    return hashlib.shake_256(label.encode()).digest(size)


class Given:
    """Rounding words that a vector lists."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def take(self, size: int) -> Words:
        taken, self._words = self._words[:size], self._words[size:]
        return taken


def config_of(n: int, profile: Profile, size: int, num_metrics: int) -> RoundConfig:
    return RoundConfig(
        task_id=known("task", 16),
        task_sha256=known("task hash"),
        round=42,
        attempt=3,
        model_sha256=known("model"),
        layout_sha256=known("layout"),
        statement_sha256=known("graph"),
        size=size,
        num_metrics=num_metrics,
        numbers=NumberFormat(32, 16, 8.0, 0.5, 64, 32.0, 8),
        cohort=CohortTerms(profile, min(n, 4), n),
    )


def config_json(config: RoundConfig) -> Json:
    n, c, p = config.numbers, config.cohort, config.noise
    fields = {
        "version": VERSION,
        "suite": int(config.suite),
        "profile": int(c.profile),
        "task_id": config.task_id.hex(),
        "task_sha256": config.task_sha256.hex(),
        "round": config.round,
        "attempt": config.attempt,
        "model_sha256": config.model_sha256.hex(),
        "layout_sha256": config.layout_sha256.hex(),
        "statement_sha256": config.statement_sha256.hex(),
        "size": config.size,
        "num_metrics": config.num_metrics,
        "ring_bits": n.ring_bits,
        "frac_bits": n.frac_bits,
        "metric_frac_bits": n.metric_frac_bits,
        "l2_clip": n.l2_clip,
        "coordinate_clip": n.coordinate_clip,
        "metric_bound": n.metric_bound,
        "max_weight": n.max_weight,
        "n_min": c.n_min,
        "n_max": c.n_max,
        "k": c.k,
        "t": c.t,
        "mechanism": int(p.mechanism),
        "noise_multiplier": p.noise_multiplier,
        "target_epsilon": p.target_epsilon,
        "delta": p.delta,
        "deadlines": list(astuple(config.deadlines)),
    }
    return {"fields": fields, "bytes": config.to_bytes().hex(), "sha256": config.sha256.hex()}


# primitives.json


def primitives() -> Json:
    lists: list[list[bytes]] = [[], [b""], [b"a", b"bc"], [b"ab", b"c"], [bytes(300)]]
    binding, u, v = known("R"), known("u", 16), known("v", 16)
    a, b = MaskKey(known("a")), SealingKey(known("b"), known("kem b", 64))
    secret_b, plain = known("secret b"), known("two shares and a part", 96)
    kem = mlkem.encapsulated(b.kem_public, known("encapsulation"))
    sealed = functools.partial(seal_shares, encapsulated=kem)
    part, peer_part = a.part(binding, u, v), MaskKey(known("b's mask")).part(binding, v, u)
    shared = a.agree(b.public) + kem[0]
    return {
        "tagged_hash": [
            {"tag": "b", "parts": [part.hex() for part in parts], "hash": tagged_hash("b", *parts).hex()}
            for parts in lists
        ],
        "config": [
            config_json(config_of(9, Profile.MALICIOUS_SERVER, 12, 2)),
            config_json(replace(config_of(300, Profile.HONEST_BUT_CURIOUS, 1_000_000, 0), suite=Suite.ED25519)),
        ],
        "members": [
            {
                "n": n,
                "members": members,
                "bits": pack_members(members, n).hex(),
                "hash": members_hash(members, n).hex(),
            }
            for n, members in ((5, [0, 2, 4]), (8, list(range(8))), (9, [8]), (300, list(range(0, 300, 7))))
        ],
        "binding": binding.hex(),
        "ids": [u.hex(), v.hex()],
        "agreement": {
            "private": [derive(known("a"), bytes(32), "mask").hex(), known("b").hex()],
            "public": [a.public.hex(), b.public.hex()],
            "shared": a.agree(b.public).hex(),
        },
        "kem": {
            "seed": known("kem b", 64).hex(),
            "public": b.kem_public.hex(),
            "chance": known("encapsulation").hex(),
            "secret": kem[0].hex(),
            "ciphertext": kem[1].hex(),
            "refused_public": [(b"\xff" * 3 + b.kem_public[3:]).hex()],
        },
        "mask_secrets": [known("a").hex(), known("b's mask").hex()],
        "part_u_to_v": part.hex(),
        "part_v_to_u": peer_part.hex(),
        "cover": cover(part, peer_part, binding, min(u, v), max(u, v)).hex(),
        "pair_seed": pair_seed(a, b.public, part, binding, u, v).hex(),
        "enc_key_u_to_v": derive(shared, binding, "enc", u, v).hex(),
        "enc_key_v_to_u": derive(shared, binding, "enc", v, u).hex(),
        "b": secret_b.hex(),
        "self_seed": self_seed(secret_b, binding, u).hex(),
        "commitment_b": commitment_b(secret_b, binding, u).hex(),
        "shares_plain": plain.hex(),
        "shares_sealed_u_to_v": sealed(a, b.public, binding, u, v, plain).hex(),
        "refused_sealed_u_to_v": [
            {"why": "sender and receiver exchanged", "sealed": sealed(a, b.public, binding, v, u, plain).hex()},
            {"why": "another round's R", "sealed": sealed(a, b.public, known("other R"), u, v, plain).hex()},
            {"why": "another sender's key", "sealed": sealed(b, b.public, binding, u, v, plain).hex()},
            {"why": "one bit of the KEM's", "sealed": _flip(sealed(a, b.public, binding, u, v, plain)).hex()},
            {"why": "one bit of the rest", "sealed": _flip(sealed(a, b.public, binding, u, v, plain), 1100).hex()},
        ],
        "refused_agreement_keys": [
            bytes(32).hex(),
            (1).to_bytes(32, "little").hex(),
            (2**255 - 20).to_bytes(32, "little").hex(),
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        ],
        **_signatures(),
    }


def _flip(data: bytes, at: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _signatures() -> Json:
    p256, ed = fixed_key("signer"), Ed25519PrivateKey.from_private_bytes(known("ed25519"))
    message = tagged_hash("consist", known("R"), known("U2"), known("U3"))
    by_p256 = EcdsaSigner.of(p256, deterministic=True).sign(message)
    by_ed = Ed25519Signer(ed).sign(message)
    upper_s = by_p256[:32] + (ORDER - int.from_bytes(by_p256[32:], "big")).to_bytes(32, "big")
    larger_s = by_ed[:32] + (int.from_bytes(by_ed[32:], "little") + ED25519_ORDER).to_bytes(32, "little")
    return {
        "signed_message": message.hex(),
        "ecdsa_p256": {
            "private": private_hex(p256),
            "public_spki": p256.public_key().public_bytes(*SPKI).hex(),
            "id": identity_id(p256.public_key()).hex(),
            "signature": by_p256.hex(),
            "refused": [
                {"why": "s in the upper half", "signature": upper_s.hex()},
                {"why": "r is zero", "signature": (bytes(32) + by_p256[32:]).hex()},
                {"why": "s is zero", "signature": (by_p256[:32] + bytes(32)).hex()},
                {"why": "one bit of r", "signature": _flip(by_p256).hex()},
                {"why": "too short", "signature": by_p256[:63].hex()},
            ],
        },
        "ed25519": {
            "private": known("ed25519").hex(),
            "public_spki": ed.public_key().public_bytes(*SPKI).hex(),
            "id": identity_id(ed.public_key()).hex(),
            "signature": by_ed.hex(),
            "refused": [
                {"why": "S beyond the group order", "signature": larger_s.hex()},
                {"why": "one bit of R", "signature": _flip(by_ed).hex()},
                {"why": "too short", "signature": by_ed[:63].hex()},
            ],
            "refused_public_keys": sorted(key.hex() for key in SMALL_ORDER_ED25519),
        },
    }


# rosters.json


def rosters() -> Json:
    return {"cases": [_roster(7, 0, 0), _roster(7, 4, 3), _roster(300, 0, 0)]}


def _roster(n: int, k: int, t: int) -> Json:
    """An entry is its id followed by a common suffix: what else an entry holds does not matter to R."""
    config = replace(
        config_of(n, Profile.MALICIOUS_SERVER, 12, 2), cohort=CohortTerms(Profile.MALICIOUS_SERVER, 3, n, k, t)
    )
    suffix = known("entry suffix", 8)
    ids = sorted(known(f"device {i}", 16) for i in range(n))
    levels = merkle_tree([leaf_hash(i, device + suffix) for i, device in enumerate(ids)])
    topology = Topology.of(config, tuple(ids), levels[-1][0])
    rows = [topology.graph.neighbours(i) for i in range(n)]
    digest = hashlib.sha256(b"".join(i.to_bytes(2, "big") for row in rows for i in row)).hexdigest()
    return {
        "n": n,
        "config_sha256": config.sha256.hex(),
        "ids": [device.hex() for device in ids],
        "entry_suffix": suffix.hex(),
        "merkle_root": levels[-1][0].hex(),
        "binding": topology.binding.hex(),
        "graph_seed": topology.graph.seed.hex(),
        "k": topology.hood.k,
        "t": topology.hood.t,
        "permutation": permutation(topology.graph.seed, n),
        "neighbours_of_0": list(rows[0]),
        "neighbours_of_last": list(rows[-1]),
        "all_neighbours_sha256": digest,
    }


# masks.json


def masks() -> Json:
    cases = []
    for label in ("seed 1", "seed 2"):
        words = WordStream(known(label)).take(1_000_000)
        cases.append(
            {
                "seed": known(label).hex(),
                "num_words": len(words),
                "first_words": [int(w) for w in words[:4]],
                "last_words": [int(w) for w in words[-4:]],
                "sha256": hashlib.sha256(words.tobytes()).hexdigest(),
            }
        )
    return {"cases": cases}


# shamir.json


def sharing() -> Json:
    secret, coefficients = known("secret"), known("coefficients", 64)
    shares = shamir.split(secret, 3, 5, lambda size: coefficients[:size])
    large_coefficients = known("many coefficients", 66 * 32)
    large = shamir.split(secret, 67, 99, lambda size: large_coefficients[:size])
    wrong = {x: share if x not in (2, 5) else bytes(32) for x, share in enumerate(shares, start=1)}
    return {
        "exp_sha256": hashlib.sha256(shamir.EXP.tobytes()).hexdigest(),
        "log_sha256": hashlib.sha256(bytes(int(v) for v in shamir.LOG[1:])).hexdigest(),
        "mul_sha256": hashlib.sha256(shamir.MUL.tobytes()).hexdigest(),
        "secret": secret.hex(),
        "threshold": 3,
        "coefficients": [coefficients[:32].hex(), coefficients[32:].hex()],
        "shares": [share.hex() for share in shares],
        "subsets": [
            {"x": list(chosen), "secret": shamir.combine({x: shares[x - 1] for x in chosen}, 3).hex()}
            for chosen in itertools.combinations(range(1, 6), 3)
        ],
        "below_threshold": [
            {"x": list(chosen), "not_the_secret": shamir.combine({x: shares[x - 1] for x in chosen}, 2).hex()}
            for chosen in itertools.combinations(range(1, 6), 2)
        ],
        "two_wrong": {"shares": [wrong[x].hex() for x in range(1, 6)], "wrong": [2, 5], "secret": secret.hex()},
        "large": {
            "threshold": 67,
            "coefficients_label": "SHAKE-256 of 'many coefficients', 66 rows of 32 bytes",
            "coefficients": large_coefficients.hex(),
            "first_share": large[0].hex(),
            "last_share": large[-1].hex(),
            "sha256": hashlib.sha256(b"".join(large)).hexdigest(),
        },
    }


# numbers.json


def numbers() -> Json:
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-9, -1e-9, 0.3, -0.3, 3.0, -3.0, 1 - 2**-24, 2**-17, 1.5 * 2**-16]
    update = np.array([*values, *np.random.default_rng(1).uniform(-1, 1, 17)], np.float32)
    random = WordStream(known("rounding")).take(len(update))
    random[:4] = (0, 2**32 - 1, 2**32 - 1, 1)
    cases = []
    for frac_bits, clip, factor, weight in (
        (16, 1.0, 1.0, 1),
        (16, 0.5, 0.75, 64),
        (30, 1.0, 1.0, 1),
        (0, 2.0, 1.0, 3),
    ):
        number_format = NumberFormat(32, frac_bits, 8.0, clip, 64)
        out = np.empty(len(update), np.uint32)
        quantise_update(update, factor, number_format, weight, Given(random), out)
        case = {"frac_bits": frac_bits, "coordinate_clip": clip, "factor": factor, "weight": weight}
        cases.append({**case, "words": [int(word) for word in out]})
    metrics = (0.25, -31.99, 99.0, 2.718281828459045)
    number_format = NumberFormat(32, 16, 8.0, 1.0, 64, 32.0, 8)
    rounded = quantise_metrics(metrics, number_format, 5, Given(random))
    words = WordStream(known("packed")).take(6)
    return {
        "update_float32_le": update.astype("<f4").tobytes().hex(),
        "random": [int(word) for word in random],
        "cases": cases,
        "metrics": {
            "values": list(metrics),
            "bound": 32.0,
            "frac_bits": 8,
            "weight": 5,
            "words": [int(word) for word in rounded.view(np.uint32)],
        },
        "packing": {
            "words": [int(word) for word in words],
            "packed_32": pack(words, 32).hex(),
            "packed_24": pack(words, 24).hex(),
        },
        "masked": _masked(),
    }


def _masked() -> Json:
    """Three devices that share masks in pairs; no roster, seeds are given."""
    config = config_of(9, Profile.MALICIOUS_SERVER, 12, 2)
    layout, binding = VectorLayout(12, 2), known("R")
    ids = sorted(known(f"masked device {i}", 16) for i in range(3))
    self_seeds = [known(f"self {i}") for i in range(3)]
    pair_seeds = {(i, j): known(f"pair {i} {j}") for i, j in itertools.combinations(range(3), 2)}
    devices, total = [], np.zeros(layout.num_words, np.uint32)
    for i in range(3):
        addends = _addends(f"masked {i}", config)
        random = WordStream(known(f"rounding {i}")).take(14)
        vector = encode(addends, layout, config.numbers, binding, Given(random))
        total += vector
        plus = [self_seeds[i], *(pair_seeds[i, j] for j in range(i + 1, 3))]
        masked = vector.copy()
        add_masks(masked, plus, [pair_seeds[j, i] for j in range(i)])
        devices.append(
            {
                "id": ids[i].hex(),
                "weight": addends.weight,
                "update_float32_le": addends.update.astype("<f4").tobytes().hex(),
                "metrics": list(addends.metrics),
                "random": [int(word) for word in random],
                "self_seed": self_seeds[i].hex(),
                "vector": [int(word) for word in vector],
                "masked": [int(word) for word in masked],
            }
        )
    return {
        "config": config_json(config)["fields"],
        "binding": binding.hex(),
        "pair_seeds": [{"lower": i, "higher": j, "seed": seed.hex()} for (i, j), seed in pair_seeds.items()],
        "devices": devices,
        "sum": [int(word) for word in total],
    }


def _addends(label: str, config: RoundConfig) -> Addends:
    raw = np.frombuffer(known(label, 4 * config.size), "<i4").astype(np.float64) / 2**31
    update = (raw * 0.6).astype(np.float32)  # beyond the coordinate clip of 0.5 now and then
    metrics = tuple(int(value) / 8 for value in known(label + " metrics", config.num_metrics))
    return Addends(known(label + " weight", 1)[0] % config.numbers.max_weight + 1, update, metrics)


# Rounds


class Recorder:
    """Chance that follows from a label, and a list of what was drawn."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.drawn: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.drawn.append(known(f"{self._label} draw {len(self.drawn)}", size))
        return self.drawn[-1]


def verify(leaf: bytes) -> VerifiedLeaf:
    """Return who a leaf names, by the coordinator's own check against the authority of the vectors."""
    certificate = pki.load_certificate(leaf)
    identity = pki.device_identity(certificate, authority(), NOW)
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return VerifiedLeaf(bytes.fromhex(identity.id), key, 0)


def devices_of(config: RoundConfig, n: int) -> dict[bytes, tuple[DeviceRound, Recorder, str]]:
    """Return the devices of a round, by id, with their chance and their private key."""
    devices = {}
    for number in range(n):
        key = fixed_key(f"device {number}")
        leaf = device_leaf(key, serial=100 + number)
        identity = Identity(identity_id(key.public_key()), leaf, EcdsaSigner.of(key, deterministic=True))
        recorder = Recorder(f"device {number}")
        c = config
        device = DeviceRound(
            ServerRound(config, verify=verify).invite,
            identity=identity,
            assignment=Assignment(
                c.task_id, c.task_sha256, c.model_sha256, c.layout_sha256, c.statement_sha256, c.size, c.num_metrics
            ),
            policy=DevicePolicy(min_cohort=4, profiles=frozenset(Profile)),
            verify=verify,
            log=MemoryLog(),
            random_bytes=recorder,
            encapsulate=mlkem.encapsulate,
        )
        devices[identity.id] = (device, recorder, private_hex(key))
    return devices


DRAWS = ("mask_key", "share_key", "kem_seed", "nonce", "b", "coefficients_b", "coefficients_mask_key")


def _drawn(drawn: list[bytes], num_neighbours: int) -> dict[str, str]:
    """Return a device's chance by name; what it encapsulates by is end to end, a neighbour after the other."""
    named = {name: data.hex() for name, data in zip(DRAWS, drawn, strict=False)}
    rest = drawn[len(DRAWS) :]
    named["encapsulations"] = b"".join(rest[:num_neighbours]).hex()
    if len(rest) > num_neighbours:
        named["rounding_seed"] = rest[num_neighbours].hex()
    return named


def _kem_secrets(
    devices: Mapping[bytes, tuple[DeviceRound, Recorder, str]], ids: list[bytes], own: bytes
) -> Iterator[bytes]:
    """Yield what a device encapsulated for each other one, for those who have no KEM."""
    drawn = {device: devices[device][1].drawn for device in ids}
    for place, peer in enumerate(device for device in ids if device != own):
        public = SealingKey(drawn[peer][1], drawn[peer][2]).kem_public
        yield mlkem.encapsulated(public, drawn[own][len(DRAWS) + place])[0]


def whole_round(n: int, profile: Profile, lost_after_shares: int, lost_after_upload: int | None) -> Json:
    """A transcript: device `lost_after_shares` (by index in the roster) never uploads, the other never answers."""
    config = config_of(n, profile, 12, 2)
    server, devices = ServerRound(config, verify=verify), devices_of(config, n)
    ids = sorted(devices)
    messages: dict[str, Any] = {str(int(kind)): {} for kind in Kind if kind is not Kind.INVITE}

    def note(kind: Kind, device: bytes, message: bytes) -> bytes:
        messages[str(int(kind))][device.hex()] = message.hex()
        return message

    for d in ids:
        server.accept_advertise(d, note(Kind.ADVERTISE, d, devices[d][0].advertise()))
    roster = server.close_keys()[ids[0]]
    for d in ids:
        server.accept_shares(d, note(Kind.SHARES, d, devices[d][0].share(roster)))
    delivered = server.close_shares()
    addends = {d: _addends(f"addends {i}", config) for i, d in enumerate(ids)}
    payloads = {}
    for i, d in enumerate(ids):
        note(Kind.DELIVERED, d, delivered[d])
        if i != lost_after_shares:
            masked = devices[d][0].mask(delivered[d], addends[d])
            payloads[d] = masked.payload
            server.accept_masked(d, note(Kind.MASKED, d, masked.message), masked.payload)
    survivors = server.close_upload()
    alive = [d for i, d in enumerate(ids) if i not in (lost_after_shares, lost_after_upload)]
    if profile.has_consistency_round:
        for d in alive:
            server.accept_consistency(d, note(Kind.CONSISTENCY, d, devices[d][0].agree(survivors)))
        for d, proof in server.close_consistency().items():
            answer = devices[d][0].unmask(note(Kind.PROOF, d, proof))
            server.accept_unmask(d, note(Kind.UNMASK, d, answer))
    else:
        for d in alive:
            server.accept_unmask(d, note(Kind.UNMASK, d, devices[d][0].agree(survivors)))
    messages["2"], messages["6"] = {"all": roster.hex()}, {"all": survivors.hex()}
    opening, topology = server.open(), server.topology
    scale = 2**config.numbers.frac_bits
    return {
        "config": config_json(config),
        "invite": server.invite.hex(),
        "authority": pki.to_der(authority()).hex(),
        "now": "2030-01-01T00:00:00Z",
        "binding": topology.binding.hex(),
        "k": topology.hood.k,
        "t": topology.hood.t,
        "devices": [
            {
                "id": d.hex(),
                "identity_private": devices[d][2],
                "drawn": _drawn(devices[d][1].drawn, n - 1),
                "kem_secrets": [secret.hex() for secret in _kem_secrets(devices, ids, d)],
                "weight": addends[d].weight,
                "update_float32_le": addends[d].update.astype("<f4").tobytes().hex(),
                "metrics": list(addends[d].metrics),
                "payload": payloads[d].hex() if d in payloads else "",
            }
            for d in ids
        ],
        "messages": messages,
        "signed": _signed(config, server, messages, ids),
        "result": {
            "survivors": [d.hex() for d in opening.survivors],
            "count": opening.sum.count,
            "weight": opening.sum.weight,
            "num_unclipped": opening.sum.num_unclipped,
            "metric_steps": [round(m * 2**config.numbers.metric_frac_bits) for m in opening.sum.metrics],
            "update_steps": [round(x * scale) for x in opening.sum.update],
        },
    }


def _signed(config: RoundConfig, server: ServerRound, messages: Json, ids: list[bytes]) -> Json:
    """What messages 1 and 3 sign for the first device, and 5 and 7 for all: 32 bytes each."""
    first = ids[0]
    entry = Advertise.from_bytes(bytes.fromhex(messages["1"][first.hex()])).entry
    shares = Shares.from_bytes(bytes.fromhex(messages["3"][first.hex()]))
    return {
        "advertise_of_first": statement_advertise(config.sha256, entry).hex(),
        "shares_of_first": statement_shares(server.topology.binding, first, shares).hex(),
        "sharers_hash": server._sharers_hash.hex(),
        "consistency": server._consistency_statement.hex(),
    }


# refused.json: what a device of the nine-device round must refuse, as changes to what it was sent


def refused() -> Json:
    """Each case: replay the round for one device up to a step, then send the message with one byte changed."""
    rows = [*_refused_rosters(), *_refused_later()]
    return {
        "round": "round_n9_two_losses.json",
        "how": "replay the side of `device` (index in the roster) with its drawn bytes, but change message `kind`: "
        "byte `offset` XOR `xor`, or the whole by `replace`; it must refuse with an error of this `code`, and answer "
        "nothing",
        "cases": rows,
    }


def _refused_rosters() -> Iterator[Json]:
    transcript = whole_round_cached()
    roster = bytes.fromhex(transcript["messages"]["2"]["all"])
    ids = [bytes.fromhex(device["id"]) for device in transcript["devices"]]
    other, own = roster.index(ids[0]), roster.index(ids[4])
    fields = {
        "id": 0,
        "mask key": 16,
        "share key": 48,
        "KEM key": 80,
        "nonce": 1264,
        "signature": 1296,
        "certificate": 1384,
    }
    for name, offset in fields.items():
        for whose, start in (("another's", other), ("own", own)):
            yield _refusal(4, 2, f"{whose} {name} changed", offset=start + offset + 2)
    yield _refusal(4, 2, "one byte more", replacement=(roster + b"\0").hex())
    yield _refusal(4, 2, "cut off", replacement=roster[:-1].hex())
    yield _refusal(4, 2, "another version", offset=0)


def _refused_later() -> Iterator[Json]:
    transcript = whole_round_cached()
    messages = transcript["messages"]
    ids = [device["id"] for device in transcript["devices"]]
    delivered, proof = (bytes.fromhex(messages[kind][ids[4]]) for kind in ("4", "8"))
    yield _refusal(4, 4, "own bit of U2 cleared", offset=2, xor=1 << 4)
    yield _refusal(4, 4, "another's bit of U2 cleared, its ciphertext kept", offset=2, xor=1)
    yield _refusal(4, 4, "a bit beyond the last member", offset=3, xor=2)
    yield _refusal(4, 4, "an index changed", offset=5, xor=1)
    yield _refusal(4, 4, "another device's message 4", replacement=messages["4"][ids[5]])
    three = bytearray(delivered)
    for place in range(3):
        three[5 + 1201 * place + 1] ^= 1
    yield _refusal(4, 4, "three ciphertexts changed: fewer than t open", replacement=bytes(three).hex())
    yield _refusal(4, 6, "own bit of U3 cleared", offset=2, xor=1 << 4)
    yield _refusal(4, 6, "one survivor", replacement="0206" + pack_members([4], 9).hex())
    yield _refusal(4, 6, "six survivors: five neighbours, t is 6", replacement="0206" + pack_members(range(6), 9).hex())
    yield _refusal(4, 8, "a signature changed", offset=4 + 16)
    yield _refusal(4, 8, "a signer changed", offset=4)
    signer = proof[4 : 4 + 80]
    yield _refusal(4, 8, "one signer twice", replacement=(proof[:-80] + signer).hex())
    fewer = proof[:2] + (5).to_bytes(2, "big") + proof[4 : 4 + 5 * 80]
    yield _refusal(4, 8, "five signatures, t is 6", replacement=fewer.hex())
    swapped = proof[:4] + proof[4:20] + proof[100:164] + proof[84:100] + proof[20:84] + proof[164:]
    yield _refusal(4, 8, "two signatures exchanged", replacement=swapped.hex())


def _refusal(device: int, kind: int, why: str, *, offset: int = -1, xor: int = 1, replacement: str = "") -> Json:
    """Return a case with the code of the error that this implementation refuses it with."""
    case: Json = {"device": device, "kind": kind, "why": why}
    case |= {"replace": replacement} if replacement else {"offset": offset, "xor": xor}
    return {**case, "code": refuse(case)}


def refuse(case: Json) -> str:
    """Replay the device's side of the nine-device round and return the code of its refusal; "" if it does not."""
    transcript = whole_round_cached()
    config = config_of(9, Profile.MALICIOUS_SERVER, 12, 2)
    devices = devices_of(config, 9)
    ids = sorted(devices)
    own = ids[case["device"]]
    device = devices[own][0]
    addends = _addends(f"addends {case['device']}", config)
    steps: list[tuple[int, Callable[[bytes], object]]] = [
        (2, device.share),
        (4, lambda message: device.mask(message, addends)),
        (6, device.agree),
        (8, device.unmask),
    ]
    device.advertise()
    for kind, step in steps:
        sent = transcript["messages"][str(kind)]
        message = bytes.fromhex(sent.get("all") or sent[own.hex()])
        if kind == case["kind"]:
            message = _changed(message, case)
        try:
            step(message)
        except MienError as error:
            return error.code if kind == case["kind"] else f"too early: {error.code}"
    return ""


def _changed(message: bytes, case: Json) -> bytes:
    if "replace" in case:
        return bytes.fromhex(case["replace"])
    changed = bytearray(message)
    changed[case["offset"]] ^= case["xor"]
    return bytes(changed)


@functools.cache
def whole_round_cached() -> Json:
    """Return the nine-device round, made once: device 2 is lost before its upload, device 6 after it."""
    return whole_round(9, Profile.MALICIOUS_SERVER, 2, 6)


FILES: dict[str, Callable[[], Json]] = {
    "primitives.json": primitives,
    "rosters.json": rosters,
    "masks.json": masks,
    "shamir.json": sharing,
    "numbers.json": numbers,
    "round_n9_two_losses.json": whole_round_cached,
    "round_n5_one_loss_curious.json": lambda: whole_round(5, Profile.HONEST_BUT_CURIOUS, 1, None),
    "refused.json": refused,
}
