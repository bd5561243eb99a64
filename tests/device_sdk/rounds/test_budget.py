"""Memory that training may take, its estimate, progress, and the priority of the process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from device_sdk.rounds.budget import MB, MannerlyRuntime, estimate_memory
from device_sdk.rounds.conditions import StatedConditions
from device_sdk.rounds.watch import TrainingWatch
from device_sdk.runtimes.schedule import batches
from device_sdk.server.client import CoordinatorClient
from mien.backbones import BACKBONES, build_backbone, layout_of
from mien.errors import ConfigError
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods.base import Objective, TrainingJob
from mien.protocol.rounds import RoundRef
from mien.specs import LocalSpec
from tests.device_sdk.clocks import HandClock
from tests.tiny import tiny_cnn

LAYOUT = ParameterLayout(
    (ParameterEntry("stem.weight", (10,)), ParameterEntry("mix.weight", (20,)), ParameterEntry("head.weight", (30,)))
)
TINY = tiny_cnn()
CROPS = np.random.default_rng(0).integers(0, 256, (6, 112, 112, 3), np.uint8)
HINGE = Objective(
    "positive_hinge", {"class_embedding": np.eye(1, 8, dtype=np.float32)[0]}, constants={"margin": np.float32(0.9)}
)


PIXELS = 112 * 112


def test_the_estimate_of_a_whole_network() -> None:
    estimate = estimate_memory("mobilefacenet192", LAYOUT.part(("*",)), PIXELS)
    # Six copies of the part's 60 floats; 33 MB an image, 16 MB for a forward pass.
    assert (estimate.fixed_bytes, estimate.image_bytes, estimate.forward_bytes) == (4 * 6 * 60, 33 * MB, 16 * MB)
    assert estimate.bytes_for(3) == 4 * 6 * 60 + 99 * MB


def test_a_quarter_of_the_pixels_takes_a_quarter() -> None:
    estimate = estimate_memory("mobilefacenet192", LAYOUT.part(("*",)), 56 * 56)
    assert (estimate.image_bytes, estimate.forward_bytes) == (33 * MB // 4, 4 * MB)


def test_a_late_part_takes_what_was_measured_from_the_stage_before_it_on() -> None:
    names = ("stem", "block6", "block7", "block13", "block14", "head", "adapter")
    layout = ParameterLayout(tuple(ParameterEntry(f"{name}.weight", (10,)) for name in names))
    found = {
        name: estimate_memory("mobilefacenet192", layout.part((f"{name}.*",)), PIXELS).image_bytes / MB
        for name in names
    }
    assert found == {"stem": 33, "block6": 33, "block7": 10, "block13": 10, "block14": 2, "head": 2, "adapter": 1.5}


def test_a_small_step_takes_no_less_than_the_forward_pass_before_it() -> None:
    layout = ParameterLayout(tuple(ParameterEntry(f"{name}.weight", (1000,)) for name in ("stem", "block14")))
    estimate = estimate_memory("mobilefacenet192", layout.part(("block14.*",)), PIXELS)
    assert estimate.bytes_for(1) == estimate.bytes_for(8) == 24_000 + 16 * MB
    assert estimate.bytes_for(9) == 24_000 + 18 * MB
    assert estimate.most_images(24_000 + 16 * MB) == 8
    assert estimate.most_images(24_000 + 16 * MB - 1) == 0


@pytest.mark.parametrize(
    ("backbone", "trainable", "images", "measured_mb"),
    [
        # What two steps of hinge add to a process with the model in memory: with torch, with ONNX Runtime.
        ("mobilefacenet192", (), 4, (18.0, 12.0)),
        ("mobilefacenet192", (), 16, (35.0, 33.7)),
        ("mobilefacenet192", ("*",), 4, (146.0, 101.0)),
        ("mobilefacenet192", ("*",), 8, (300.6, 166.1)),
        ("sface", (), 4, (36.0, 29.1)),
        ("sface", (), 16, (93.3, 97.8)),
        ("sface", ("*",), 4, (286.0, 357.0)),
        ("mobilefacenet192_adapter", (), 4, (10.3, 15.0)),
        ("mobilefacenet192_adapter", (), 16, (31.8, 18.8)),
        ("sface_adapter", (), 4, (26.4,)),
    ],
)
def test_the_estimate_lies_within_twice_what_was_measured(
    backbone: str, trainable: tuple[str, ...], images: int, measured_mb: tuple[float, ...]
) -> None:
    network = build_backbone(backbone)
    part = layout_of(network).part(trainable or network.default_trainable)
    expected_mb = estimate_memory(backbone, part, PIXELS).bytes_for(images) / MB
    assert all(measured / 2 <= expected_mb <= 2 * measured for measured in measured_mb)
    assert expected_mb >= 0.9 * min(measured_mb)


def test_every_network_of_phones_was_measured() -> None:
    known = {name for name, entry in BACKBONES.items() if entry.for_phones}
    whole = {name: estimate_memory(name, layout_of(build_backbone(name)).part(("*",)), PIXELS) for name in known}
    assert all(estimate.image_bytes < 50 * MB for estimate in whole.values())


def test_an_unknown_network_is_taken_for_a_large_one_trained_whole() -> None:
    estimate = estimate_memory("new", LAYOUT.part(("head.*",)), PIXELS)
    assert (estimate.image_bytes, estimate.forward_bytes) == (170 * MB, 85 * MB)


def test_an_engine_may_take_more_for_an_image() -> None:
    estimate = estimate_memory("mobilefacenet192", LAYOUT.part(("*",)), PIXELS, image_factor=2.0)
    assert (estimate.image_bytes, estimate.forward_bytes) == (66 * MB, 16 * MB)


def test_how_many_images_fit() -> None:
    estimate = estimate_memory("mobilefacenet192", LAYOUT.part(("*",)), PIXELS)
    assert estimate.most_images(estimate.bytes_for(3)) == 3
    assert estimate.most_images(estimate.bytes_for(3) - 1) == 2
    assert estimate.most_images(0) == 0


@dataclass
class Watched:
    """The real engine under a budget; every look at training lets some time pass."""

    max_memory_mb: float | None = None
    step_s: float = 0.0
    clock: HandClock = field(default_factory=HandClock)
    told: list[tuple[int, int]] = field(default_factory=list)

    def runtime(self, inner: Any) -> MannerlyRuntime:
        watch = TrainingWatch(cast("CoordinatorClient", None), RoundRef("t", 1, 1), StatedConditions(), self.clock)
        watch._next_look_s = 1e9
        tell = lambda done, total: self.told.append((done, total))  # noqa: E731
        return MannerlyRuntime(inner, "tiny", watch, self.clock, self.max_memory_mb, tell)

    def train(self, inner: Any, local: LocalSpec, objective: Objective = HINGE) -> Any:
        def later() -> bool:
            self.clock.advance(self.step_s)
            return False

        return self.runtime(inner).train(TrainingJob(TINY.theta, TINY.part(), CROPS, objective, local, 3), later)


LOCAL = LocalSpec(lr=0.1, epochs=2, batch_size=4)


def limit_for(num_images: int) -> float:
    """Return the megabytes that so many images of a step are expected to take."""
    return estimate_memory("tiny", TINY.part(), 112 * 112).bytes_for(num_images) / MB


def test_a_batch_that_does_not_fit_is_taken_in_pieces_with_the_same_result() -> None:
    whole = TINY.runtime().train(TrainingJob(TINY.theta, TINY.part(), CROPS, HINGE, LOCAL, 3))
    runtime = TINY.runtime()
    pieces = Watched(max_memory_mb=limit_for(1)).train(runtime, LOCAL)
    assert pieces.num_steps == whole.num_steps
    np.testing.assert_allclose(pieces.values, whole.values, atol=1e-6)
    assert runtime._micro_batch == 0


def test_the_engine_holds_as_many_images_as_fit() -> None:
    sizes: list[int] = []

    class Noting:
        def can_divide(self, *_: Any) -> bool:
            return True

        def in_pieces(self, num_images: int) -> Any:
            sizes.append(num_images)
            return TINY.runtime().in_pieces(num_images)

        def embed(self, *_: Any) -> Any: ...

        def train(self, *given: Any) -> Any:
            return TINY.runtime().train(*given)

    for number in (1, 2, 3, 4):
        Watched(max_memory_mb=limit_for(number)).train(Noting(), LOCAL)
    assert sizes == [1, 2, 3]  # four fit as they are
    Noting.image_factor = 2.0  # type: ignore[attr-defined]
    Watched(max_memory_mb=limit_for(4)).train(Noting(), LOCAL)
    assert sizes[3:] == [2]


@pytest.mark.parametrize("objective", [HINGE, Objective("dan")])
def test_what_does_not_fit_is_refused_before_it_trains(objective: Objective) -> None:
    # Not one image fits; or two would, and the objective compares all four.
    limit = limit_for(1) - 0.01 if objective is HINGE else limit_for(2)
    with pytest.raises(ConfigError, match=r"about \d+ MB \(an estimate, .* 4 images a step\).*max_memory_mb is \d"):
        Watched(max_memory_mb=limit).train(TINY.runtime(), LOCAL, objective)


def test_an_engine_that_cannot_take_pieces_refuses() -> None:
    class Whole:
        def embed(self, *_: Any) -> Any: ...

        def train(self, *_: Any) -> Any:
            raise AssertionError

    with pytest.raises(ConfigError, match="max_memory_mb"):
        Watched(max_memory_mb=limit_for(3)).train(Whole(), LOCAL)


def test_progress_is_told_at_most_every_five_seconds() -> None:
    watched = Watched(step_s=2.0)
    trained = watched.train(TINY.runtime(), LocalSpec(lr=0.1, steps=9, batch_size=2))
    # Asked before each step, after 2, 4, 6 s and so on: told from 5 s on, again five seconds later, and at the end.
    assert trained.num_steps == 9
    assert watched.told == [(2, 9), (5, 9), (8, 9), (9, 9)]


def test_training_of_a_few_seconds_tells_nothing() -> None:
    watched = Watched(step_s=0.1)
    watched.train(TINY.runtime(), LOCAL)
    assert watched.told == []


@pytest.mark.parametrize("num_crops", [1, 2, 4, 5, 9])
@pytest.mark.parametrize(
    "local",
    [
        LocalSpec(epochs=3),
        LocalSpec(epochs=3, batch_size=1),
        LocalSpec(epochs=2, batch_size=4),
        LocalSpec(steps=7, batch_size=2),
        LocalSpec(epochs=2, batch_size=4, batch_norm="train"),
    ],
)
def test_the_number_of_steps_is_that_of_the_batches(local: LocalSpec, num_crops: int) -> None:
    assert local.num_steps(num_crops) == len(list(batches(local, num_crops, np.random.default_rng(0))))


def test_a_process_steps_back_and_never_forward() -> None:
    code = (
        "import os\n"
        "from device_sdk.rounds.budget import lower_priority\n"
        "start = os.nice(0)\n"
        "want = min(start + 2, 19)\n"
        "assert lower_priority(want) is (want > start)\n"
        "assert os.nice(0) == want\n"
        "assert not lower_priority(0)\n"
        "assert os.nice(0) == want\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
