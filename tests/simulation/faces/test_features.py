"""Features that outlive a process: found again, never mixed up, and never more than a help."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mien.methods.base import Crops
from mien.specs import FaceInputSpec
from simulation.faces.features import MAX_FEATURE_BYTES, KeptFeatures, kept_features

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


def test_a_process_holds_none_of_what_others_kept(tmp_path: Path) -> None:
    """A file with earlier runs' features costs a run that needs few of them a few bytes a row."""
    width, rows = 2048, 4000
    asked(KeptFeatures(tmp_path, "m"), crops_of(0), Trunk(width))
    (file,) = tmp_path.iterdir()
    kept = file.read_bytes()
    row_bytes = (len(kept) - 64) // 4
    with file.open("ab") as more:
        more.writelines(os.urandom(32) + bytes(row_bytes - 32) for _ in range(rows))
    tracemalloc.start()
    try:
        trunk, cache = Trunk(width), KeptFeatures(tmp_path, "m")
        asked(cache, crops_of(0), trunk)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trunk.computed == 0
    assert held < 1e6
    assert peak < file.stat().st_size / 3


def test_a_full_file_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never becomes longer than it may, and still serves; who knew its old rows takes no other's for them."""
    monkeypatch.setattr("simulation.faces.features.MAX_FILE_BYTES", 64 + 9 * (32 + 12 + 48 + 16))
    trunk, early = Trunk(), KeptFeatures(tmp_path, "m", capacity_bytes=0)
    computed = []
    for seed in (0, 1, 2, 2, 1, 0, 0):
        before = trunk.computed
        found = asked(KeptFeatures(tmp_path, "m"), crops_of(seed), trunk)
        np.testing.assert_array_equal(found, crops_of(seed).reshape(4, -1))
        np.testing.assert_array_equal(asked(early, crops_of(0), Trunk()), crops_of(0).reshape(4, -1))
        computed.append(trunk.computed - before)
        (file,) = tmp_path.iterdir()
        assert file.stat().st_size <= 64 + 9 * (32 + 12 + 48 + 16)
    assert computed[3] == 0
    assert computed[-1] == 0


def test_a_file_that_is_removed_costs_only_time(tmp_path: Path) -> None:
    trunk, cache = Trunk(), KeptFeatures(tmp_path, "m", capacity_bytes=0)
    asked(cache, crops_of(0), trunk)
    (file,) = tmp_path.iterdir()
    file.unlink()
    for _ in range(2):
        np.testing.assert_array_equal(asked(cache, crops_of(0), trunk), crops_of(0).reshape(4, -1))
    assert trunk.computed == 8
