"""Variants of a model: what names their templates, which lists are refused, what an older program makes of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from mien.errors import ConfigError, CorruptDataError, VersionError
from mien.layout import ParameterEntry, ParameterLayout
from mien.models import bundles
from mien.models.bundles import BundleFile, BundleManifest, check_description, manifest_of
from mien.models.variants import (
    VariantList,
    check_tier,
    check_variants,
    form_id,
    model_of,
    variant_of,
)
from mien.protocol.canonical import model_to_json
from mien.records import from_mapping, to_mapping
from mien.specs import FaceInputSpec, ModelSpec, Threshold
from tests.device_sdk.made_up_variants import graph, variant

MODEL, OTHER = "a" * 64, "b" * 64
SPEC = FaceInputSpec(dim=16)
LAYOUT = ParameterLayout((ParameterEntry("w", (2, 3)),))
SPEC_JSON = model_to_json(ModelSpec("tiny", LAYOUT.sha256, SPEC, "made up", "none", ("w",)), LAYOUT)
DATA = graph()
INT8 = variant(MODEL, DATA)


def manifest(listed: bytes, *files: BundleFile) -> BundleManifest:
    theta = BundleFile("theta.f32", "c" * 64, 24)
    return manifest_of(SPEC_JSON, MODEL, [theta, BundleFile.of("variants.json", listed), *files], sequence=1)


def test_a_form_is_named_after_its_model_and_the_variants_file() -> None:
    assert form_id(MODEL) == MODEL
    assert (model_of(MODEL), variant_of(MODEL)) == (MODEL, "")
    form = form_id(MODEL, INT8.sha256)
    assert form == f"{MODEL}:{INT8.sha256}" == INT8.form_id
    assert (model_of(form), variant_of(form)) == (MODEL, INT8.sha256)


def test_what_is_signed_is_read_again_and_the_model_is_as_without_variants() -> None:
    listed = VariantList((INT8,)).to_json()
    signed = manifest(listed, BundleFile.of("int8.variant", DATA))
    assert check_variants(signed, listed) == VariantList((INT8,))
    assert [file.name for file in signed.extras] == ["int8.variant", "variants.json"]
    assert signed.graphs == ()
    # An older program reads the same manifest, passes the files over that it does not know, and uses float32.
    assert from_mapping(BundleManifest, to_mapping(signed)) == signed
    check_description(signed, SPEC_JSON)
    assert manifest_of(SPEC_JSON, MODEL, [signed.files[-2]], sequence=1).min_sdk == signed.min_sdk


def swapped(**changes: Any) -> bytes:
    """Return a list whose variant is described otherwise than a `Variant` can be."""
    value = json.loads(VariantList((INT8,)).to_json())
    value["variants"][0].update(changes)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (VariantList((variant(OTHER, DATA),)).to_json(), "of another model"),
        (VariantList((dataclasses.replace(INT8, input=FaceInputSpec(dim=8)),)).to_json(), "of another model"),
        (VariantList((variant(MODEL, graph(1)),)).to_json(), "not the signed file"),
        (VariantList((dataclasses.replace(INT8, tier="other"),)).to_json(), "not the signed file"),
        # The model's own threshold, and another variant's, in this one's place.
        (swapped(thresholds=[to_mapping(Threshold(0.1, 1e-3, "x", 1, 1, MODEL, "x"))]), "measured on something else"),
        (swapped(thresholds=to_mapping(variant(MODEL, graph(1)))["thresholds"]), "measured on something else"),
        (swapped(size_bytes=2**40), "at most"),
        (swapped(sha256="x"), "cannot be"),
        (swapped(unknown=1), "unknown field"),
        (b"[]", "cannot be read"),
        (b'{"version": "2", "variants": []}', "cannot be read"),
        (b'{"version": 2, "variants": []}', "newer form"),
        (b"{", "not JSON|cannot be read"),
    ],
)
def test_a_signed_list_that_does_not_fit_is_refused(listed: bytes, message: str) -> None:
    with pytest.raises((CorruptDataError, VersionError), match=message):
        check_variants(manifest(listed, BundleFile.of("int8.variant", DATA)), listed)


def test_a_list_that_was_not_signed_is_refused() -> None:
    listed = VariantList((INT8,)).to_json()
    softer = VariantList((variant(MODEL, DATA, threshold=-1.0),)).to_json()
    with pytest.raises(CorruptDataError, match="not the signed one"):
        check_variants(manifest(listed, BundleFile.of("int8.variant", DATA)), softer)
    without = manifest_of(SPEC_JSON, MODEL, [BundleFile("theta.f32", "c" * 64, 24)], sequence=1)
    with pytest.raises(CorruptDataError, match="not the signed one"):
        check_variants(without, listed)


def test_a_bundle_with_variants_lists_them_and_none_too_large() -> None:
    theta = BundleFile("theta.f32", "c" * 64, 24)
    with pytest.raises(ConfigError, match=r"lists variants\.json"):
        manifest_of(SPEC_JSON, MODEL, [theta, BundleFile.of("int8.variant", DATA)], sequence=1)
    large = BundleFile("int8.variant", "d" * 64, bundles.MAX_GRAPH_BYTES + 1)
    with pytest.raises(ConfigError, match="none above 64 MiB"):
        manifest(b"x", large)


def test_names_that_cannot_be() -> None:
    for name in ("", "INT8", "int 8", "../int8", "x" * 20, "8bit"):
        with pytest.raises(ConfigError, match="no name of a form"):
            check_tier(name)
    with pytest.raises(ConfigError, match="the model itself is called"):
        variant(MODEL, DATA, tier="float32")
    with pytest.raises(ConfigError, match="two variants have one name"):
        VariantList((INT8, INT8))


NEWER_ENTRIES: list[dict[str, Any]] = [
    {"min_sdk": "0.3.0"},
    {"min_sdk": "0.3.0", "size_bytes": 2**40, "tier": "INT9"},
    {"engine": "executorch"},
    {"rotation": 1},
    {"input": {**to_mapping(SPEC), "rotation": 1}},
    {"cost": {**to_mapping(INT8.cost), "light": "dark"}},
    {"thresholds": [{**to_mapping(INT8.thresholds[0]), "light": "dark"}]},
]


@pytest.mark.parametrize("changes", NEWER_ENTRIES)
def test_variants_for_newer_programs_and_other_engines_are_passed_over(changes: dict[str, Any]) -> None:
    value = json.loads(VariantList((INT8,)).to_json())
    value["variants"].insert(0, {**value["variants"][0], "tier": "other", **changes})
    listed = json.dumps(value).encode()
    signed = manifest(listed, BundleFile.of("int8.variant", DATA))
    assert check_variants(signed, listed, software="0.2.0").variants == (INT8,)


@pytest.mark.parametrize(
    "changes", [{"size_bytes": 2**40}, {"sha256": "x"}, {"sha256": "e" * 64}, {"min_sdk": 1}, {"engine": None}]
)
def test_a_variant_for_this_program_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    listed = swapped(**changes)
    signed = manifest(listed, BundleFile.of("int8.variant", DATA))
    with pytest.raises(CorruptDataError):
        check_variants(signed, listed, software="0.2.0")
