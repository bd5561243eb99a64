"""Form of the model that a phone embeds with: float32, unless it is too slow or too large and a variant is not.

Measured on noise, which takes as long as a face; accuracy was measured by whoever made the variant, and comes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from device_sdk.config import InferenceConfig
from device_sdk.models.variants import LoadedVariant
from device_sdk.program.bench import added_mb, least_ms
from device_sdk.program.words import typed
from mien.errors import ConfigError, CorruptDataError, MissingDependencyError
from mien.methods.base import Crops
from mien.models.variants import Variant

_REPEATS: Final = 3


@dataclass(frozen=True)
class FormFigures:
    """Cost of a form: the processor's milliseconds a face, MB that it adds to the process (Linux alone tells), size.

    `cost` says in words what a variant costs in accuracy and `fnmr` is its false non-match rate; both are empty for
    float32, which it is compared with. `lacks` says why a form cannot be used here.
    """

    tier: str
    embed_ms: float | None
    memory_mb: float | None
    size_mb: float
    cost: str = ""
    fnmr: float | None = None
    lacks: str = ""


def measure_variant(variant: Variant, load: Callable[[], LoadedVariant], *, max_fmr: float) -> FormFigures:
    """Return the figures of a variant, which `load` makes ready; one without a threshold for `max_fmr` cannot serve."""
    spec, loaded = variant.input, list[LoadedVariant]()
    faces: Crops = np.random.default_rng(2).integers(0, 256, (1, spec.height, spec.width, 3), np.uint8)

    def begin() -> None:
        loaded.append(load())
        loaded[0].embed(faces)

    size_mb, words, fnmr = variant.size_bytes / 1e6, str(variant.cost), variant.cost.fnmr
    try:
        memory_mb = added_mb(begin)
    except (MissingDependencyError, CorruptDataError) as error:
        return FormFigures(variant.tier, None, None, size_mb, words, fnmr, typed(error.message))
    embed_ms = least_ms(lambda: loaded[0].embed(faces), _REPEATS)
    lacks = "" if any(each.fmr <= max_fmr for each in variant.thresholds) else f"no threshold for FMR {max_fmr:g}"
    return FormFigures(variant.tier, embed_ms, memory_mb, size_mb, words, fnmr, lacks)


def choose(figures: Sequence[FormFigures], budget: InferenceConfig) -> FormFigures:
    """Return the form to use: float32 where it is within the budget, else the most accurate variant that is, else the
    quickest of all.
    """
    usable = [each for each in figures if each.embed_ms is not None and not each.lacks]
    if not usable:
        raise ConfigError(f"no form of the model can run here: {'; '.join(each.lacks for each in figures)}")
    within = [each for each in usable if _is_within(each, budget)]
    if within:
        return min(within, key=lambda each: -1.0 if each.fnmr is None else each.fnmr)
    return min(usable, key=lambda each: each.embed_ms or 0.0)


def _is_within(figures: FormFigures, budget: InferenceConfig) -> bool:
    fast = figures.embed_ms is not None and figures.embed_ms <= budget.max_ms
    return fast and (budget.max_mb is None or figures.memory_mb is None or figures.memory_mb <= budget.max_mb)
