"""Which form a phone chooses: float32 within the budget, else the most accurate variant, and how that is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from device_sdk.config import InferenceConfig, load_config
from device_sdk.models.variants import LoadedVariant, load_variant
from device_sdk.program.kept_settings import keep_setting
from device_sdk.program.tiers import FormFigures, choose, measure_variant
from mien.errors import ConfigError, CorruptDataError
from tests.device_sdk.made_up_variants import graph, variant

FLOAT32 = FormFigures("float32", 100.0, 80.0, 40.0)
INT8 = FormFigures("int8", 40.0, 20.0, 10.0, "misses more", 0.05)
INT4 = FormFigures("int4", 30.0, 10.0, 5.0, "misses many", 0.2)
ALL = (FLOAT32, INT8, INT4)


@pytest.mark.parametrize(
    ("max_ms", "max_mb", "expected"),
    [
        (250.0, None, "float32"),
        (100.0, 80.0, "float32"),
        (99.0, None, "int8"),
        (250.0, 79.0, "int8"),
        (35.0, None, "int4"),
        (250.0, 15.0, "int4"),
        (1.0, None, "int4"),  # none is quick enough: the quickest
    ],
)
def test_the_budget_decides(max_ms: float, max_mb: float | None, expected: str) -> None:
    assert choose(ALL, InferenceConfig(max_ms=max_ms, max_mb=max_mb)).tier == expected
    assert choose(ALL[::-1], InferenceConfig(max_ms=max_ms, max_mb=max_mb)).tier == expected


def test_what_cannot_be_used_is_not_chosen() -> None:
    broken = FormFigures("int8", 40.0, 20.0, 10.0, "misses more", 0.05, lacks="no threshold")
    assert choose((FLOAT32, broken), InferenceConfig(max_ms=50.0)).tier == "float32"
    with pytest.raises(ConfigError, match="no threshold"):
        choose((broken,), InferenceConfig())


def test_memory_that_the_system_does_not_tell_is_within_the_budget() -> None:
    assert choose((FormFigures("float32", 1.0, None, 40.0), INT8), InferenceConfig(max_mb=1.0)).tier == "float32"


def test_a_variant_is_measured_with_what_it_costs() -> None:
    data = graph()
    made = variant("a" * 64, data)
    found = measure_variant(made, lambda: load_variant(made, data), max_fmr=1e-3)
    assert (found.tier, found.lacks, found.fnmr) == ("int8", "", 0.05)
    assert found.embed_ms is not None
    assert 0 <= found.embed_ms < 60_000
    assert "5.00 %" in found.cost
    assert "4.00 %" in found.cost
    strict = measure_variant(made, lambda: load_variant(made, data), max_fmr=1e-4)
    assert strict.lacks == "no threshold for FMR 0.0001"

    def refuse() -> LoadedVariant:
        return load_variant(made, b"no graph")

    broken = measure_variant(made, refuse, max_fmr=1e-3)
    assert broken.embed_ms is None
    assert "cannot load variant int8" in broken.lacks


def test_a_graph_that_embeds_otherwise_than_the_model_is_refused() -> None:
    data = graph(dim=8)
    made = variant("a" * 64, data)
    loaded = load_variant(made, data)
    with pytest.raises(CorruptDataError, match="another size"):
        loaded.embed(np.zeros((1, 112, 112, 3), np.uint8))


@pytest.mark.parametrize(
    "before",
    [
        "",
        "threads = 2\n",
        "threads = 2\n\n[verification]\nmax_fmr = 0.01\n",
        'threads = 2\n[inference]\ntier = "float32" # by default\nmax_ms = 90\n\n[verification]\nmax_fmr = 0.01\n',
        "threads = 2\n[inference] # forms\nmax_ms = 90.0\n[verification]\nmax_fmr = 0.01",
        "threads = 2\n[inference]",
    ],
)
def test_the_choice_is_kept_and_nothing_else_changed(tmp_path: Path, before: str) -> None:
    path = tmp_path / "device.toml"
    if before:
        path.write_text(before)
    for tier in ("int8", "float32"):
        keep_setting(path, "inference.tier", tier)
        values = load_config(path).config
        assert values.inference.tier == tier
        assert values.threads == (2 if before else 1)
        assert values.verification.max_fmr == (0.01 if "verification" in before else 0.001)
        assert values.inference.max_ms == (90.0 if "max_ms" in before else 250.0)


def test_settings_that_cannot_be() -> None:
    for wrong in ({"tier": "INT8"}, {"max_ms": 0.0}, {"max_mb": -1.0}):
        with pytest.raises(ConfigError):
            InferenceConfig(**wrong)
