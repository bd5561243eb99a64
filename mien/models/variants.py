"""Variants of a released model: the same network in smaller numbers, for inference on phones that are slow or short.

::

    variants.json    what variants there are, how each was made and what it costs in accuracy, on which faces
    int8.variant     one of them, with the model's parameters built in

A variant gives other embeddings than the model in float32. It has thresholds of its own, and what made a template is
named by its *form*: the model's id, and for a variant the hash of its file behind it. Forms are never compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Final

from mien.errors import ConfigError, CorruptDataError, VersionError
from mien.models.bundles import MAX_GRAPH_BYTES, VARIANT_SUFFIX, VARIANTS, BundleFile, BundleManifest, is_older
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.records import from_mapping, to_mapping
from mien.specs import FaceInputSpec, Threshold

FLOAT32: Final = "float32"
"""Name of the model itself among its forms."""
ONNXRUNTIME: Final = "onnxruntime"
VERSION: Final = 1
_TIER: Final = re.compile(r"[a-z][a-z0-9-]{0,15}")
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_LONGEST_VERSION: Final = 64


@dataclass(frozen=True)
class VariantCost:
    """Accuracy cost of a variant, measured beside float32 on the same comparisons of `dataset`.

    `fnmr` is that at its own threshold for a false match rate of `fmr`, `fnmr_float32` that of the model at the
    model's; `fnmr_crossed` and `fmr_crossed` are the variant's at the model's threshold, which phones do not use.
    Cosines are those of a face's two embeddings.
    """

    dataset: str
    dataset_sha256: str
    num_people: int
    num_mated: int
    num_non_mated: int
    fmr: float
    fnmr: float
    fnmr_float32: float
    fnmr_crossed: float
    fmr_crossed: float
    cosine_mean: float
    cosine_least: float

    def __str__(self) -> str:
        return (
            f"misses {100 * self.fnmr:.2f} % of faces at a false match rate of {self.fmr:g}, float32 "
            f"{100 * self.fnmr_float32:.2f} % ({self.num_people} people of {self.dataset})"
        )


@dataclass(frozen=True)
class Variant:
    """One variant: its name, its file, the model that it is of, how it was made, its thresholds and what it costs.

    `engine` runs it, from program version `min_sdk` on. `made` says how, `calibration` with which faces.
    """

    tier: str
    sha256: str
    size_bytes: int
    model_id: str
    input: FaceInputSpec
    engine: str
    made: str
    calibration: str
    thresholds: tuple[Threshold, ...]
    cost: VariantCost
    min_sdk: str

    def __post_init__(self) -> None:
        check_tier(self.tier)
        if self.tier == FLOAT32:
            raise ConfigError(f"a variant is called {FLOAT32}, which is what the model itself is called; rename it")
        if not (_HEX.fullmatch(self.sha256) and _HEX.fullmatch(self.model_id)):
            raise ConfigError("a variant names a file or model that cannot be; each is 64 lower-case hex digits")
        if not 0 < self.size_bytes <= MAX_GRAPH_BYTES:
            raise ConfigError(f"variant {self.tier} has {self.size_bytes} bytes; at most {MAX_GRAPH_BYTES} are taken")
        if any(each.model_id != self.form_id for each in self.thresholds):
            raise ConfigError(f"variant {self.tier} has a threshold that was measured on something else; make it again")

    @property
    def file(self) -> str:
        """The name of its file in a bundle."""
        return f"{self.tier}{VARIANT_SUFFIX}"

    @property
    def form_id(self) -> str:
        """Id of the form, in the names of its templates and thresholds."""
        return form_id(self.model_id, self.sha256)


@dataclass(frozen=True)
class VariantList:
    """All variants of one model."""

    variants: tuple[Variant, ...]
    version: int = VERSION

    def __post_init__(self) -> None:
        tiers = [each.tier for each in self.variants]
        if len(set(tiers)) != len(tiers):
            raise ConfigError("two variants have one name; rename one")

    def to_json(self) -> bytes:
        """Return the list as the bytes of `variants.json`."""
        return to_canonical_json(to_mapping(self))

    @classmethod
    def from_json(cls, data: bytes, *, software: str | None = None) -> VariantList:
        """Return the variants that `to_json` gave; of a program version `software` only those that it can run are read.

        Raises VersionError for the list of a newer program, CorruptDataError for anything else.
        """
        value = parse_json(data, what="the list of variants")
        version = value.get("version") if isinstance(value, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise VersionError("the model's variants are listed in a newer form; upgrade mien, or use float32")
        if not isinstance(value, dict) or version != VERSION:
            raise CorruptDataError("the list of variants cannot be read (it has no version); make them again")
        listed = value.get("variants")
        if software is not None and isinstance(listed, list):
            value = {**value, "variants": [each for each in listed if not _is_for_others(each, software)]}
        try:
            return from_mapping(cls, value)
        except ConfigError as error:
            raise CorruptDataError(f"the list of variants cannot be read ({error.message}); make them again") from error

    def named(self, tier: str) -> Variant | None:
        """Return the variant of that name, None where there is none."""
        return next((each for each in self.variants if each.tier == tier), None)


def form_id(model_id: str, variant_sha256: str = "") -> str:
    """Return the id after which templates of a model, or of a variant of it, are named."""
    return f"{model_id}:{variant_sha256}" if variant_sha256 else model_id


def model_of(form: str) -> str:
    """Return the id of the model that a form is of."""
    return form.partition(":")[0]


def variant_of(form: str) -> str:
    """Return the hash of a form's variant; empty for the model itself."""
    return form.partition(":")[2]


def check_tier(tier: str) -> str:
    """Return the name of a form; raises ConfigError for what cannot be."""
    if not _TIER.fullmatch(tier):
        raise ConfigError(f"{tier[:40]!r} is no name of a form; write {FLOAT32}, or a variant's name such as int8")
    return tier


def check_variants(manifest: BundleManifest, variants_json: bytes, *, software: str | None = None) -> VariantList:
    """Return the list of variants once it is the signed one, of this model, and of signed files only.

    With `software`, a program's version, what is for newer programs or other engines is passed over. Raises
    CorruptDataError, and VersionError for the list of a newer program.
    """
    listed = manifest.file(VARIANTS)
    if listed is None or BundleFile.of(VARIANTS, variants_json) != listed:
        raise CorruptDataError("the list of variants is not the signed one; do not use it, tell the operator")
    found = VariantList.from_json(variants_json, software=software)
    for each in found.variants:
        if (each.model_id, each.input) != (manifest.model_id, manifest.input):
            raise CorruptDataError(f"variant {each.tier} is of another model; make it of this one, and sign again")
        if manifest.file(each.file) != BundleFile(each.file, each.sha256, each.size_bytes):
            raise CorruptDataError(f"variant {each.tier} is not the signed file; make it again, and sign again")
    return found


def _is_for_others(entry: object, software: str) -> bool:
    """Return whether an entry of a list is for a newer program or another engine; fields unknown here mean so, too."""
    if not isinstance(entry, dict):
        return False
    engine, least, measured = entry.get("engine"), entry.get("min_sdk"), entry.get("thresholds")
    if isinstance(engine, str) and engine != ONNXRUNTIME:
        return True
    if isinstance(least, str) and len(least) <= _LONGEST_VERSION and is_older(software, least):
        return True
    records: list[tuple[object, Any]] = [(entry, Variant), (entry.get("input"), FaceInputSpec)]
    records.append((entry.get("cost"), VariantCost))
    records.extend((each, Threshold) for each in (measured if isinstance(measured, list) else []))
    return any(isinstance(each, dict) and each.keys() - {f.name for f in fields(kind)} for each, kind in records)
