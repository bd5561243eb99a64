"""The demo's two tasks and the script that measures them, without the hours that its runs take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mien.backbones import build_backbone, layout_of
from mien.errors import ConfigError
from mien.methods import find_method
from mien.methods.base import Objective, TrainingJob
from mien.records import from_mapping
from mien.specs import LocalSpec
from simulation.engines.runtimes import PublicOnly
from simulation.papers.demo.tune import VARIANTS, Variant, table
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

LAYOUT = layout_of(build_backbone("sface_adapter"))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_task_that_its_method_takes(name: str) -> None:
    task = VARIANTS[name].spec(seed=2)
    method = find_method(task.method)
    from_mapping(method.options, task.options, where="options.")
    part = LAYOUT.part(task.trainable)
    lanes = method.contribution_layout(task, part, 128).revealed
    assert task.seed == 2
    assert [lane.name for lane in lanes] == (["class_embedding"] if task.privacy.reveals else [])
    assert part.size <= 1_100_000


def test_the_demos_task_shows_nothing_of_a_single_phone() -> None:
    assert VARIANTS["fedface"].spec(0).privacy.reveals == ()
    assert VARIANTS["fedface_exact"].spec(0).privacy.reveals == ("class_embeddings",)


def test_a_change_of_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.lrr"):
        Variant("fedface", {"local.lrr": 1.0}).spec(0)


def test_the_control_takes_away_the_phones_own_images_and_nothing_else() -> None:
    """What it trains does not depend on the own images, and equals a task whose batch has public ones only."""
    tiny, local = tiny_cnn(), LocalSpec(lr=0.1, flip=False)
    public = made_up_crops(4, seed=9)
    objective = Objective(
        "cosface",
        private={"class_embeddings": np.eye(3, 8, dtype=np.float32)},
        per_crop={
            "target": np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 2, 2]],
            "sample_weight": np.ones(6, np.float32),
        },
        constants={"scale": 4.0, "margin": 0.2},
        unit_norm=("class_embeddings",),
    )
    control = PublicOnly(tiny.runtime())
    one, other = (
        control.train(
            TrainingJob(
                tiny.theta, tiny.part(), np.concatenate([made_up_crops(2, seed=seed), public]), objective, local, 0
            )
        )
        for seed in (1, 2)
    )
    alone = replace(objective, per_crop={name: rows[2:] for name, rows in objective.per_crop.items()})
    expected = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), public, alone, local, 0))
    np.testing.assert_allclose(one.theta, other.theta, atol=1e-7)
    np.testing.assert_allclose(one.theta, expected.theta, atol=1e-6)


def test_the_table_shows_means_and_ranges_over_seeds() -> None:
    rows = [{"variant": "fedface", "seed": s, "eer": e, "train_cpu_s": 40.0} for s, e in enumerate((0.08, 0.10))]
    released = {"variant": "released", "seed": 0, "eer": 0.157, "lfw_accuracy": 0.9938, "train_cpu_s": 0.0}
    text = table([released, *rows], ["fedface", "public_only"])
    assert "| released | 1 | 15.70% [15.70%, 15.70%] | 99.38% [99.38%, 99.38%] | 0 |" in text
    assert "| fedface | 2 | 9.00% [8.00%, 10.00%] | not measured | 40 |" in text
    assert "public_only" not in text
