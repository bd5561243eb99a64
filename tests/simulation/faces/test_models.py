"""A model as a folder of two files: read back as written, and refused where anything is off."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    LayoutMismatchError,
    MienError,
    NonFiniteError,
    NotFoundError,
)
from mien.layout import model_id
from simulation.faces.models import Model, read_model, write_model
from tests.tiny import tiny_linear


@pytest.fixture
def model() -> Model:
    tiny = tiny_linear()
    return Model(tiny.spec, tiny.layout, tiny.theta)


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    write_model(model, tmp_path / "model")
    return tmp_path / "model"


def test_is_read_as_it_was_written(model: Model, folder: Path) -> None:
    read = read_model(folder)
    assert (read.spec, read.layout) == (model.spec, model.layout)
    assert np.array_equal(read.theta, model.theta)
    assert read.theta.dtype == np.float32
    assert read.model_id == model.model_id == model_id(model.layout.sha256, model.theta)
    assert (folder / "theta.f32").read_bytes() == np.asarray(model.theta, "<f4").tobytes()
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "theta.f32"]
    assert "array" not in repr(model)


def test_other_model_is_not_overwritten(model: Model, folder: Path) -> None:
    before = (folder / "theta.f32").read_bytes()
    with pytest.raises(AlreadyExistsError, match="name a new folder"):
        write_model(dataclasses.replace(model, theta=model.theta + 1), folder)
    assert (folder / "theta.f32").read_bytes() == before


def test_file_in_the_way_of_a_folder(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "model"):
        with pytest.raises(AlreadyExistsError, match="a file is in the way"):
            write_model(model, path)


def _set(folder: Path, **changes: object) -> None:
    value = json.loads((folder / "model.json").read_text())
    value["spec"] |= changes
    (folder / "model.json").write_text(json.dumps(value))


def _with_value(folder: Path, value: float) -> None:
    theta = np.fromfile(folder / "theta.f32", "<f4")
    theta[7] = value
    theta.tofile(folder / "theta.f32")


def _truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        pytest.param(lambda f: (f / "theta.f32").unlink(), CorruptDataError, "theta.f32 is missing", id="no theta"),
        pytest.param(lambda f: (f / "model.json").unlink(), CorruptDataError, "model.json is missing", id="no json"),
        pytest.param(lambda f: _truncate(f / "theta.f32", 140), LayoutMismatchError, "140 bytes", id="short theta"),
        pytest.param(lambda f: _truncate(f / "theta.f32", 142), LayoutMismatchError, "142 bytes", id="odd theta"),
        pytest.param(lambda f: _truncate(f / "theta.f32", 0), LayoutMismatchError, "0 bytes", id="empty theta"),
        pytest.param(lambda f: _with_value(f, np.nan), NonFiniteError, "NaN", id="NaN"),
        pytest.param(lambda f: _with_value(f, -np.inf), NonFiniteError, "infinit", id="infinity"),
        pytest.param(lambda f: _truncate(f / "model.json", 99), CorruptDataError, "not JSON", id="short json"),
        pytest.param(
            lambda f: _set(f, layout_sha256="0" * 64), CorruptDataError, "another layout", id="other layout's hash"
        ),
        pytest.param(lambda f: _set(f, surprise=1), ConfigError, "unknown field", id="unknown field"),
        pytest.param(
            lambda f: (f / "model.json").write_bytes(b" " * (2 << 20)), CorruptDataError, "the limit", id="huge json"
        ),
    ],
)
def test_damaged_folders_are_refused(folder: Path, damage: object, error: type[MienError], says: str) -> None:
    assert callable(damage)
    damage(folder)
    with pytest.raises(error, match=says):
        read_model(folder)


def test_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(NotFoundError, match="there is no folder"):
            read_model(path)
