"""One model made ready to compare faces: its parameters, the runtime that runs them, its threshold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from device_sdk.faces.crops import fit_crops
from device_sdk.models.models import KnownModel, Model
from device_sdk.models.variants import LoadedVariant
from device_sdk.people.enrolled import Template
from mien.errors import ConfigError, NonFiniteError
from mien.methods.base import Crops, Embeddings, Runtime
from mien.models.variants import Variant
from mien.specs import FaceInputSpec, Threshold

if TYPE_CHECKING:
    from mien.methods.personal_branch import PersonalThreshold

DEFAULT_MAX_FMR: Final = 1e-3
DEFAULT_MAX_FPIR: Final = 1e-2


@dataclass(frozen=True)
class Recogniser:
    """Embeds crops with one model: in float32 by a runtime, or with a variant of it."""

    model: Model
    runtime: Runtime | LoadedVariant = field(repr=False)

    @property
    def model_id(self) -> str:
        """The model's id."""
        return self.model.model_id

    @property
    def variant(self) -> Variant | None:
        """The variant that embeds; None for the model itself."""
        return self.runtime.variant if isinstance(self.runtime, LoadedVariant) else None

    @property
    def form_id(self) -> str:
        """Id of the form that its templates are named after: other forms' are never compared with its embeddings."""
        return self.model_id if self.variant is None else self.variant.form_id

    @property
    def input(self) -> FaceInputSpec:
        """Face input that the model expects of a crop."""
        return self.model.spec.input

    def embed(self, crops: Crops) -> Embeddings:
        """Return unit embeddings (N, dim) of master crops (N, 112, 112, 3); raises NonFiniteError."""
        return self.embed_fitted(fit_crops(crops, self.input))

    def embed_fitted(self, crops: Crops) -> Embeddings:
        """Return unit embeddings (N, dim) of crops that are of the model's size already; raises NonFiniteError."""
        if isinstance(self.runtime, LoadedVariant):
            embeddings = self.runtime.embed(crops)
        else:
            embeddings = self.runtime.embed(self.model.theta, crops)
        norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
        if not np.isfinite(embeddings).all() or (norms < 1e-6).any():
            raise NonFiniteError("the model gave an embedding that is not usable; fetch it again, tell the operator")
        unit: Embeddings = (embeddings / norms).astype(np.float32)
        return unit

    def template(self, features: Embeddings) -> Template:
        """Return the template of one person's embeddings (N, dim)."""
        return Template.of(features, self.form_id, self.input)


@dataclass(frozen=True)
class Operating:
    """The threshold that decides, and where it is from: the model's own with its provenance, given by hand, or
    `personal`: a person's own under the personal model. `fpir` bounds how often a stranger is named among all who are
    enrolled, at most `max_fpir` unless these are too many for the model; None where nobody knows, or is searched for.
    """

    value: float
    provenance: Threshold | None
    personal: PersonalThreshold | None = None
    fpir: float | None = None
    max_fpir: float | None = None

    @property
    def too_many(self) -> str:
        """Why more are enrolled than the model can tell from strangers, and what helps; empty where it can."""
        if self.fpir is None or self.max_fpir is None or self.fpir <= self.max_fpir:
            return ""
        return (
            f"too many are enrolled for this model: a stranger may be named in {self.fpir:.2g} of all looks, wanted "
            f"are at most {self.max_fpir:g} (`verification.max_fpir`). Verify with a name, or ask the operator to "
            "measure this model's thresholds on more people"
        )

    def __str__(self) -> str:
        if self.personal is not None:
            return str(self.personal)
        if self.provenance is None:
            return f"{self.value:.3f}, given by hand: no false match rate is known for it"
        from_ = self.provenance
        searching = (
            "" if self.fpir is None else f"; in a search a stranger is named in at most {self.fpir:.2g} of looks"
        )
        return (
            f"{self.value:.3f}: false match rate {from_.fmr:.2g} on {from_.num_non_mated} non-mated comparisons of "
            f"{from_.dataset} ({from_.date}){searching}"
        )


def operating_point(
    model: KnownModel,
    variant: Variant | None = None,
    *,
    threshold: float | None = None,
    max_fmr: float = DEFAULT_MAX_FMR,
    signed: bool = False,
) -> Operating:
    """Return the model's threshold with the highest FMR that is at most `max_fmr`, or the one given by hand.

    Only thresholds measured on this very model, or on the `variant` of it that embeds, count: scores drift from one to
    the next. Raises ConfigError when there is none, or the one given is no cosine; it says what helps, which is another
    release where releases are `signed`, and their thresholds with them.
    """
    if threshold is not None:
        if not -1.0 <= threshold <= 1.0:
            raise ConfigError(f"threshold is {threshold}; it must be a cosine between -1 and 1")
        return Operating(threshold, None)
    own = _measured_on(model, variant)
    strict = [known for known in own if known.fmr <= max_fmr]
    if not strict:
        have = f"; it has FMR {min(known.fmr for known in own):.2g} (`verification.max_fmr`)" if own else ""
        of_what = "" if variant is None else f"variant {variant.tier} of "
        raise ConfigError(
            f"{of_what}model {model.model_id[:12]} carries no threshold for a false match rate of at most "
            f"{max_fmr:g}{have}; ask the operator to {_remedy(variant, signed=signed)}, then call `Device.update()` "
            "here, or give `verification.threshold`"
        )
    best = max(strict, key=lambda known: (known.fmr, -known.value))
    return Operating(best.value, best)


def point_among(
    model: KnownModel,
    variant: Variant | None,
    num_enrolled: int,
    *,
    threshold: float | None = None,
    max_fmr: float = DEFAULT_MAX_FMR,
    max_fpir: float = DEFAULT_MAX_FPIR,
    signed: bool = False,
) -> Operating:
    """Return the threshold at which a stranger is named as one of `num_enrolled` people in at most `max_fpir` of looks.

    It is the model's for a false match rate of `max_fpir / num_enrolled`, and none weaker than `operating_point`; where
    the model has none so strict, its strictest: see `Operating.too_many`. Errors as `operating_point`.
    """
    at = operating_point(model, variant, threshold=threshold, max_fmr=max_fmr, signed=signed)
    if at.provenance is None:
        return at
    own = _measured_on(model, variant)
    needed = min(max_fmr, max_fpir / num_enrolled)
    strict = [known for known in own if known.fmr <= needed]
    chosen = max(strict, key=lambda known: known.fmr) if strict else min(own, key=lambda known: known.fmr)
    # Pairs of pictures give lower thresholds than templates do: none that is for a higher rate may be above.
    best = max((known for known in own if known.fmr >= chosen.fmr), key=lambda known: known.value)
    return Operating(best.value, best, fpir=min(1.0, chosen.fmr * num_enrolled), max_fpir=max_fpir)


def _measured_on(model: KnownModel, variant: Variant | None) -> list[Threshold]:
    """Return the thresholds that were measured on this very form of a model."""
    form = model.model_id if variant is None else variant.form_id
    measured = model.spec.thresholds if variant is None else variant.thresholds
    return [known for known in measured if known.model_id == form]


def _remedy(variant: Variant | None, *, signed: bool) -> str:
    """Return advice to an operator on giving phones thresholds; those of a variant are measured when it is made."""
    if variant is not None:
        return "make the variant anew from more public faces"
    if signed:
        return "measure this model's thresholds and sign it anew"
    return "measure this model's thresholds"
