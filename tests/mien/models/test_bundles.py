"""Bundles: what a signature covers, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mien.errors import ConfigError, CorruptDataError, VersionError
from mien.layout import ParameterEntry, ParameterLayout
from mien.models.bundles import (
    BundleFile,
    BundleManifest,
    check_description,
    check_sdk,
    manifest_of,
    name_of,
    public_key,
    sign,
    verify,
)
from mien.protocol.canonical import model_to_json, to_canonical_json
from mien.specs import FaceInputSpec, ModelSpec, Threshold

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
# RFC 8032's key derivation of that seed, as OpenSSL and libsodium give it.
PUBLIC = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
LAYOUT = ParameterLayout((ParameterEntry("w", (2, 3)),))
MODEL = "a" * 64
SPEC = ModelSpec(
    *("tiny", LAYOUT.sha256, FaceInputSpec(dim=4), "made up", "none", ("w",)),
    thresholds=(Threshold(0.3, 0.001, "faces", 10, 30_000, MODEL, "2026-01-01"),),
)
SPEC_JSON = model_to_json(SPEC, LAYOUT)
THETA = BundleFile("theta.f32", "b" * 64, 24)


def made(sequence: int = 7, **changes: object) -> BundleManifest:
    return dataclasses.replace(manifest_of(SPEC_JSON, MODEL, [THETA], sequence=sequence), **changes)  # type: ignore[arg-type]


def test_what_was_signed_is_read_again() -> None:
    manifest = made()
    data = manifest.to_json()
    assert name_of(KEY) == PUBLIC
    assert verify(PUBLIC, data, sign(KEY, data)) == manifest
    assert manifest.thresholds == SPEC.thresholds
    check_description(manifest, SPEC_JSON)


@pytest.mark.parametrize("place", [0, 20, -1])
def test_a_changed_byte_of_manifest_or_signature_is_refused(place: int) -> None:
    data = made().to_json()
    signature = sign(KEY, data)
    for pair in ((flipped(data, place), signature), (data, flipped(signature, place)), (data, b""), (b"", signature)):
        with pytest.raises(CorruptDataError, match="not signed by the operator's release key"):
            verify(PUBLIC, *pair)


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def test_another_key_and_another_purpose_are_refused() -> None:
    data = made().to_json()
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    for signature in (sign(other, data), KEY.sign(data)):
        with pytest.raises(CorruptDataError):
            verify(PUBLIC, data, signature)


def test_another_description_is_refused() -> None:
    other = model_to_json(dataclasses.replace(SPEC, thresholds=()), LAYOUT)
    with pytest.raises(CorruptDataError, match="not the signed one"):
        check_description(made(), other)
    listed = manifest_of(other, MODEL, [THETA], sequence=1)
    contradicting = dataclasses.replace(listed, thresholds=SPEC.thresholds)
    with pytest.raises(CorruptDataError, match="contradicts"):
        check_description(contradicting, other)


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence": 0},
        {"sequence": 2**53 + 1},
        {"model_id": "A" * 64},
        {"fallbacks": ["x"]},
        {"files": []},
        {"files": [{"name": "../theta.f32", "sha256": "b" * 64, "size_bytes": 1}]},
        {"files": [{"name": "manifest.json", "sha256": "b" * 64, "size_bytes": 1}]},
        {"min_sdk": "new"},
        {"unknown": 1},
    ],
)
def test_a_signed_manifest_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    data = to_canonical_json({**json.loads(made().to_json()), **changes})
    with pytest.raises(VersionError):
        verify(PUBLIC, data, sign(KEY, data))


def test_a_newer_form_and_a_newer_sdk_ask_for_an_upgrade() -> None:
    data = to_canonical_json({**json.loads(made().to_json()), "format": 2})
    with pytest.raises(VersionError, match="newer form"):
        verify(PUBLIC, data, sign(KEY, data))
    check_sdk(made(min_sdk="0.2.0"), "0.10.0")
    with pytest.raises(VersionError, match=r"needs mien 0\.2\.0, this is 0\.1\.9"):
        check_sdk(made(min_sdk="0.2.0"), "0.1.9")


def test_what_is_no_key() -> None:
    for text in ("", "0" * 63, "G" * 64):
        with pytest.raises(ConfigError, match="64 lower-case hex digits"):
            public_key(text)
