"""Features that outlive a process: found again, never mixed up, and never more than a help."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mien.methods.base import Crops
from mien.specs import FaceInputSpec
from simulation.features import MAX_FEATURE_BYTES, KeptFeatures, kept_features

TRUNK = bytes(32)
PLAIN = np.zeros(4, np.bool_)


def crops_of(seed: int, count: int = 4) -> Crops:
    return np.random.default_rng(seed).integers(0, 256, (count, 2, 2, 3), np.uint8)


class Trunk:
    """A trunk whose features are the crops' own numbers, and which counts what it computes."""

    def __init__(self, width: int = 12) -> None:
        self.computed = 0
        self._width = width

    def __call__(self, crops: Crops) -> Iterable[torch.Tensor]:
        self.computed += len(crops)
        return torch.from_numpy(np.resize(crops.reshape(len(crops), -1), (len(crops), self._width)).astype(np.float32))


def asked(cache: KeptFeatures, crops: Crops, trunk: Trunk, flipped: NDArray[np.bool_] = PLAIN) -> NDArray[np.float32]:
    return torch.stack(cache.features(TRUNK, crops, flipped, trunk)).numpy()


def test_another_process_finds_them(tmp_path: Path) -> None:
    trunk = Trunk()
    first = asked(KeptFeatures(tmp_path, "m"), crops_of(0), trunk)
    # Two crops that are known, in another order, and two that are not.
    mixed = np.concatenate([crops_of(0)[[2, 1]], crops_of(1)[:2]])
    again = asked(KeptFeatures(tmp_path, "m"), mixed, trunk)
    np.testing.assert_array_equal(again[:2], first[[2, 1]])
    np.testing.assert_array_equal(again[2:], mixed[2:].reshape(2, -1))
    assert trunk.computed == 6
    assert asked(KeptFeatures(tmp_path, "m"), mixed, trunk).tolist() == again.tolist()
    assert trunk.computed == 6


def test_another_model_does_not(tmp_path: Path) -> None:
    trunk = Trunk()
    asked(KeptFeatures(tmp_path, "m"), crops_of(0), trunk)
    asked(KeptFeatures(tmp_path, "other"), crops_of(0), trunk)
    KeptFeatures(tmp_path, "m").features(b"1" * 32, crops_of(0), PLAIN, trunk)
    assert trunk.computed == 12


@pytest.mark.parametrize("kept", ["mirrored", "large"])
def test_what_is_not_kept(tmp_path: Path, kept: str) -> None:
    trunk = Trunk(MAX_FEATURE_BYTES if kept == "large" else 12)
    for _ in range(2):
        asked(KeptFeatures(tmp_path, "m"), crops_of(0), trunk, np.full(4, kept == "mirrored"))
    assert trunk.computed == 8


@pytest.mark.parametrize("damage", ["cut", "foreign", "empty"])
def test_a_damaged_file_costs_only_time(tmp_path: Path, damage: str) -> None:
    trunk = Trunk()
    expected = asked(KeptFeatures(tmp_path, "m"), crops_of(0), trunk)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    file.write_bytes({"cut": data[:-7], "foreign": b"?" * 500, "empty": b""}[damage])
    for _ in range(2):
        np.testing.assert_array_equal(asked(KeptFeatures(tmp_path, "m"), crops_of(0), trunk), expected)
    assert trunk.computed == {"cut": 5, "foreign": 8, "empty": 8}[damage]


def test_the_file_alone_tells_nothing_of_a_face(tmp_path: Path) -> None:
    features = asked(KeptFeatures(tmp_path, "m"), crops_of(0), Trunk())
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    for crop, row in zip(crops_of(0), features, strict=True):
        assert row.tobytes() not in data
        assert row[:2].tobytes() not in data
        assert hashlib.sha256(crop.tobytes()).digest() not in data


def test_a_row_of_another_picture_does_not_open(tmp_path: Path) -> None:
    trunk = Trunk()
    asked(KeptFeatures(tmp_path, "m"), crops_of(0, 2), trunk, PLAIN[:2])
    (file,) = tmp_path.iterdir()
    data, width = file.read_bytes(), (file.stat().st_size - 64) // 2
    first, second = data[64 : 64 + width], data[64 + width :]
    file.write_bytes(data[:64] + first[:32] + second[32:] + second[:32] + first[32:])
    again = asked(KeptFeatures(tmp_path, "m"), crops_of(0, 2), trunk, PLAIN[:2])
    np.testing.assert_array_equal(again, crops_of(0, 2).reshape(2, -1))
    assert trunk.computed == 4


def test_a_folder_that_others_may_read_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert isinstance(kept_features(FaceInputSpec(), "x"), KeptFeatures)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o755)
    assert not isinstance(kept_features(FaceInputSpec(), "x"), KeptFeatures)
