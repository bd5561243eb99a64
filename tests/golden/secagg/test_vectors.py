"""The vector files are what the code gives, what plain Python integers give, and what Java gives."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key

from mien.errors import BY_CODE, CertificateError, MienError
from mien.secagg import RoundConfig, Suite, VerifiedLeaf
from mien.secagg.keys import (
    AgreementKey,
    SealingKey,
    check_agreement_key,
    check_identity,
    identity_id,
    kem_key,
    open_shares,
    verify_signature,
)
from mien.secagg.masks import WordStream
from tests.golden.secagg._vectors import FILES, refuse
from tests.golden.secagg.write import FOLDER, text_of
from tests.mien.secagg import mlkem, reference


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_the_code_gives_what_the_file_holds(name: str) -> None:
    """A difference here is a change of protocol: a new version byte, not new vectors."""
    assert text_of(name) == (FOLDER / name).read_text(encoding="utf-8")


def test_no_vector_file_is_forgotten() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(FILES)


# Plain Python integers


def test_hashes_and_derivations() -> None:
    file = load("primitives.json")
    for case in file["tagged_hash"]:
        assert reference.tagged_hash(case["tag"], *map(bytes.fromhex, case["parts"])).hex() == case["hash"]
    binding, (u, v) = bytes.fromhex(file["binding"]), map(bytes.fromhex, file["ids"])
    agreed, kem = bytes.fromhex(file["agreement"]["shared"]), file["kem"]
    secret, ciphertext = mlkem.encapsulated(bytes.fromhex(kem["public"]), bytes.fromhex(kem["chance"]))
    assert (secret.hex(), ciphertext.hex()) == (kem["secret"], kem["ciphertext"])
    a, b = (bytes.fromhex(text) for text in file["agreement"]["private"])
    masks = [bytes.fromhex(text) for text in file["mask_secrets"]]
    assert reference.hkdf(masks[0], bytes(32), b"MSA2/mask") == a
    assert SealingKey(b, bytes.fromhex(kem["seed"])).decapsulate(ciphertext) == secret
    shared, part = agreed + secret, bytes.fromhex(file["part_u_to_v"])
    assert reference.hkdf(masks[0], binding, b"MSA2/part" + u + v) == part
    assert reference.hkdf(masks[1], binding, b"MSA2/part" + v + u).hex() == file["part_v_to_u"]
    over = reference.hkdf(bytes.fromhex(file["part_v_to_u"]), binding, b"MSA2/cover" + min(u, v) + max(u, v))
    assert (int.from_bytes(part, "big") ^ int.from_bytes(over, "big")).to_bytes(32, "big").hex() == file["cover"]
    assert reference.hkdf(agreed + part, binding, b"MSA2/pair" + min(u, v) + max(u, v)).hex() == file["pair_seed"]
    assert reference.hkdf(shared, binding, b"MSA2/enc" + u + v).hex() == file["enc_key_u_to_v"]
    assert reference.hkdf(shared, binding, b"MSA2/enc" + v + u).hex() == file["enc_key_v_to_u"]
    assert reference.hkdf(bytes.fromhex(file["b"]), binding, b"MSA2/self" + u).hex() == file["self_seed"]
    for case in file["config"]:
        assert reference.tagged_hash("cfg", bytes.fromhex(case["bytes"])).hex() == case["sha256"]
        assert RoundConfig.from_bytes(bytes.fromhex(case["bytes"])).sha256.hex() == case["sha256"]


def test_rosters_and_graphs() -> None:
    cases = load("rosters.json")["cases"]
    assert [(case["n"], case["k"], case["t"]) for case in cases] == [(7, 6, 5), (7, 4, 3), (300, 96, 67)]
    for case in cases:
        ids = [bytes.fromhex(text) for text in case["ids"]]
        assert ids == sorted(ids)
        root = reference.merkle_root([device + bytes.fromhex(case["entry_suffix"]) for device in ids])
        binding = reference.tagged_hash("roster", bytes.fromhex(case["config_sha256"]), b"".join(ids), root)
        assert binding.hex() == case["binding"]
        seed = reference.tagged_hash("graph", binding)
        order = reference.shuffle([int(w) for w in WordStream(seed).take(4 * case["n"])], case["n"])
        assert order == case["permutation"]
        n, k = case["n"], case["k"]
        near = {order[(order.index(0) + step) % n] for step in range(-(k // 2), k // 2 + 1)} - {0}
        assert case["neighbours_of_0"] == (sorted(near) if k < n - 1 else list(range(1, n)))


def test_shares() -> None:
    file = load("shamir.json")
    rows = [bytes.fromhex(file["secret"]), *map(bytes.fromhex, file["coefficients"])]
    for x, share in enumerate(file["shares"], start=1):
        assert bytes(reference.gf_evaluate([row[i] for row in rows], x) for i in range(32)).hex() == share
    assert len(file["subsets"]) == 10
    for case in file["subsets"]:
        chosen = {x: bytes.fromhex(file["shares"][x - 1]) for x in case["x"]}
        assert reference.combine(chosen).hex() == case["secret"] == file["secret"]
    assert all(case["not_the_secret"] != file["secret"] for case in file["below_threshold"])


def test_numbers() -> None:
    file = load("numbers.json")
    data = bytes.fromhex(file["update_float32_le"])
    update = struct.unpack(f"<{len(data) // 4}f", data)
    for case in file["cases"]:
        steps = [
            reference.quantise(x * case["factor"], case["coordinate_clip"], case["frac_bits"], r)
            for x, r in zip(update, file["random"], strict=True)
        ]
        if case["frac_bits"] == 30:  # where doubles round r 2^-32, exact fractions may differ by the last step
            assert all(
                abs(reference.signed(w, 32) - case["weight"] * q) <= 1
                for w, q in zip(case["words"], steps, strict=True)
            )
        else:
            assert case["words"] == [case["weight"] * q % 2**32 for q in steps]
    packing = file["packing"]
    assert packing["packed_24"] == b"".join((w % 2**24).to_bytes(3, "little") for w in packing["words"]).hex()
    masked = file["masked"]
    columns = zip(*(device["vector"] for device in masked["devices"]), strict=True)
    assert masked["sum"] == [sum(column) % 2**32 for column in columns]
    for i, device in enumerate(masked["devices"]):
        words = list(device["masked"])
        seeds = [(device["self_seed"], -1)]
        seeds += [(p["seed"], -1) for p in masked["pair_seeds"] if p["lower"] == i]
        seeds += [(p["seed"], 1) for p in masked["pair_seeds"] if p["higher"] == i]
        for seed, sign in seeds:
            stream = WordStream(bytes.fromhex(seed)).take(len(words))
            words = [(w + sign * int(m)) % 2**32 for w, m in zip(words, stream, strict=True)]
        assert words == device["vector"]


@pytest.mark.parametrize(
    ("name", "n", "survivors", "t"),
    [("round_n9_two_losses.json", 9, 8, 6), ("round_n5_one_loss_curious.json", 5, 4, 3)],
)
def test_rounds_open_to_the_sum_of_the_survivors(name: str, n: int, survivors: int, t: int) -> None:
    file = load(name)
    result, fields = file["result"], file["config"]["fields"]
    assert (len(file["devices"]), result["count"], file["k"], file["t"]) == (n, survivors, n - 1, t)
    updates, weight = [0] * fields["size"], 0
    for device in file["devices"]:
        if device["id"] not in result["survivors"]:
            assert not device["payload"]
            continue
        random = [int(w) for w in WordStream(bytes.fromhex(device["drawn"]["rounding_seed"])).take(fields["size"] + 2)]
        values = struct.unpack(f"<{fields['size']}f", bytes.fromhex(device["update_float32_le"]))
        for i, value in enumerate(values):
            q = reference.quantise(value, fields["coordinate_clip"], fields["frac_bits"], random[2 + i])
            updates[i] += device["weight"] * q
        weight += device["weight"]
        assert hashlib.sha256(bytes.fromhex(device["payload"])).hexdigest() == file["messages"]["5"][device["id"]][4:68]
    assert (updates, weight) == (result["update_steps"], result["weight"])
    assert len(file["messages"]["9"]) == (7 if n == 9 else 4)


# What must be refused


def test_refused_signatures_and_keys() -> None:
    file = load("primitives.json")
    message = bytes.fromhex(file["signed_message"])
    for name, suite in (("ecdsa_p256", Suite.ECDSA_P256), ("ed25519", Suite.ED25519)):
        key: Any = load_der_public_key(bytes.fromhex(file[name]["public_spki"]))
        verify_signature(suite, key, message, bytes.fromhex(file[name]["signature"]), what="it")
        for case in file[name]["refused"]:
            with pytest.raises(MienError):
                verify_signature(suite, key, message, bytes.fromhex(case["signature"]), what=case["why"])
    for text in file["ed25519"]["refused_public_keys"]:
        weak = Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
        with pytest.raises(CertificateError):
            check_identity(VerifiedLeaf(identity_id(weak), weak, 0), identity_id(weak), Suite.ED25519)
    for text in file["refused_agreement_keys"]:
        with pytest.raises(MienError):
            check_agreement_key(bytes.fromhex(text))
    for text in file["kem"]["refused_public"]:
        with pytest.raises(MienError):
            kem_key(bytes.fromhex(text))
    binding, (u, v) = bytes.fromhex(file["binding"]), map(bytes.fromhex, file["ids"])
    first, second = map(bytes.fromhex, file["agreement"]["private"])
    a, b = AgreementKey(first), SealingKey(second, bytes.fromhex(file["kem"]["seed"]))
    assert (
        open_shares(b, a.public, binding, u, v, bytes.fromhex(file["shares_sealed_u_to_v"])).hex()
        == file["shares_plain"]
    )
    assert len(file["refused_sealed_u_to_v"]) == 5
    for case in file["refused_sealed_u_to_v"]:
        with pytest.raises(MienError):
            open_shares(b, a.public, binding, u, v, bytes.fromhex(case["sealed"]))


def test_every_changed_message_is_refused_with_its_code() -> None:
    cases = load("refused.json")["cases"]
    assert len(cases) >= 29
    assert {case["kind"] for case in cases} == {2, 4, 6, 8}
    for case in cases:
        assert case["code"] in BY_CODE, case["why"]
        assert refuse(case) == case["code"], case["why"]


# Java


def flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every leaf."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
    else:
        yield from itertools.chain.from_iterable(flat(child, f"{path}.{key}") for key, child in items)


@pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK 17 or newer: java is not on the path")
def test_java_gives_the_same_bytes(tmp_path: Path) -> None:
    """`Check.java` shares nothing with Python but these files: a whole round, from each device's chance to the sum."""
    lines = [
        f"{path}={value}"
        for name in FILES
        if name != "refused.json"
        for path, value in flat(load(name), name.removesuffix(".json"))
    ]
    inputs = tmp_path / "vectors.txt"
    inputs.write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", str(FOLDER / "Check.java"), str(inputs)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 800
