"""Personal models on phones of the JVM, which decide as Python's do: fitted, used or not, fitted again, forgotten."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.models.models import Model
from mien.layout import model_id
from mien.methods.base import Crops
from mien.methods.personal_branch import BranchSpec, Judgement, judge, template
from mien.protocol.tensors import PublicShard
from mien.specs import Threshold
from tests.android.jvm import JvmDevice
from tests.android.story import TINY, Story, crops_file, enrolled, signed_story
from tests.graphs import tiny_onnx_runtime
from tests.tiny import made_up_crops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RELEASED = 0.97
SHARD = PublicShard(
    np.concatenate([made_up_crops(2, seed=200 + k, spread=15) for k in range(24)]),
    np.repeat(np.arange(24), 2),
    "none",
    "made up",
)
BETTER, NO_BETTER = 7, 3
"""People whom a personal model serves better than the released one, and no better, as Python finds."""


def centred(factor: float) -> Model:
    """Return the network with features about their mean, times a factor that no embedding shows."""
    weight, bias = "embedding.1.weight", "embedding.1.bias"
    tensors = dict(TINY.layout.unflatten(TINY.theta))
    mean_D = TINY.runtime().features(TINY.theta, SHARD.crops).mean(axis=0)
    tensors[bias] = factor * (tensors[bias] - mean_D)
    tensors[weight] = factor * tensors[weight]
    theta = TINY.layout.flatten(tensors)
    identity = model_id(TINY.layout.sha256, theta)
    at = Threshold(RELEASED, 1e-3, "made up", 100, 30_000, identity, "2026-01-01")
    return Model(identity, dataclasses.replace(TINY.spec, thresholds=(at,)), TINY.layout, theta, None)


FIRST = centred(1.0)


def embed(crops: Crops) -> NDArray[np.float32]:
    return tiny_onnx_runtime(TINY).embed(FIRST.theta, crops)


def pictures(person: int) -> Crops:
    return made_up_crops(6, seed=person, spread=15)


PROBES = np.concatenate([made_up_crops(6, seed=seed, spread=15) for seed in (BETTER, NO_BETTER, 40, 41, 42)])


def judged(person: int) -> Judgement:
    own_ND, label_N = embed(pictures(person)), np.zeros(6, np.int64)
    return judge(own_ND, label_N, embed(SHARD.crops), SHARD.labels, RELEASED, BranchSpec(), 0)


def decided(person: int, *, personal: bool) -> list[int]:
    """Return whom each probe is taken for, 0 for nobody, which no rounding decides."""
    own_D, probe_ND, value = template(embed(pictures(person))), embed(PROBES), RELEASED
    if personal:
        found = judged(person)
        own_D, probe_ND, value = found.branch(own_D[None])[0], found.branch(probe_ND), found.thresholds[0].value
    scores = probe_ND @ own_D
    assert np.abs(scores - value).min() > 1e-4
    return [int(score >= value) for score in scores]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with signed_story(tmp_path_factory.mktemp("personal")) as running:
        running.release(FIRST, SHARD)
        yield running


@pytest.fixture
def probes(tmp_path: Path) -> str:
    return crops_file(tmp_path, "probes", PROBES)


def decisions(phone: JvmDevice, probes: str) -> list[int]:
    verified = phone.do("verify", person=1, crops=probes)["people"]
    assert verified == phone.do("identify", crops=probes)["people"], "one person is here"
    return list(verified)


def test_a_personal_model_decides_as_pythons_until_somebody_withdraws(
    story: Story, tmp_path: Path, probes: str
) -> None:
    with JvmDevice(tmp_path / "home") as phone:
        enrolled(phone, story, "personal", crops_file(tmp_path, "owner", pictures(BETTER)))
        assert decisions(phone, probes) == decided(BETTER, personal=False)
        expected = judged(BETTER)
        _check(phone.do("personalise"), expected)
        assert expected.is_better
        assert decisions(phone, probes) == decided(BETTER, personal=True) != decided(BETTER, personal=False)
        story.release(centred(2.0), SHARD)
        assert phone.do("update") == {"changed": True}
        assert decisions(phone, probes) == decided(BETTER, personal=True), "fitted again to the next release"
        phone.do("consent", person=1, agrees=False)
        assert decisions(phone, probes) == decided(BETTER, personal=False)
        assert phone.refused("personalise")[0] == "config"


def test_one_that_is_no_better_is_not_used(story: Story, tmp_path: Path, probes: str) -> None:
    with JvmDevice(tmp_path / "home") as phone:
        enrolled(phone, story, "personal", crops_file(tmp_path, "owner", pictures(NO_BETTER)))
        expected = judged(NO_BETTER)
        _check(phone.do("personalise"), expected)
        assert not expected.is_better
        assert decisions(phone, probes) == decided(NO_BETTER, personal=False)


def _check(found: dict[str, Any], expected: Judgement) -> None:
    assert found["used"] is expected.is_better
    assert float(found["gain"]) == pytest.approx(expected.gain, abs=1e-2)
    values = [float(value) for value in found["thresholds"]]
    assert values == pytest.approx([at.value for at in expected.thresholds], abs=1e-3)
