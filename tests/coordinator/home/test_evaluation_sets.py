"""Evaluation sets and the release key in coordinator.toml: what is read, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.home.config import CoordinatorConfig, EvaluationSets
from mien.errors import ConfigError

ADDRESS = "coordinator.example:7443"


def test_sets_by_name() -> None:
    config = CoordinatorConfig(ADDRESS, evaluation_sets=("a=/faces/a", "b=/faces/x=y"), evaluation_crops=("c=crops",))
    assert config.sets == EvaluationSets({"a": "/faces/a", "b": "/faces/x=y"}, {"c": "crops"})
    assert config.sets.names == ("a", "b", "c")
    assert config.sets.chosen(()) == config.sets
    assert config.sets.chosen(("c", "a")) == EvaluationSets({"a": "/faces/a"}, {"c": "crops"})
    with pytest.raises(ConfigError, match="no evaluation set 'd'"):
        config.sets.chosen(("d",))
    assert CoordinatorConfig(ADDRESS).sets.names == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"evaluation_sets": ("/faces",)},
        {"evaluation_sets": ("=/faces",)},
        {"evaluation_sets": ("a=",)},
        {"evaluation_sets": ("a b=/faces",)},
        {"evaluation_sets": ("a=/faces", "a=/others")},
        {"evaluation_sets": ("a=/faces",), "evaluation_crops": ("a=/crops",)},
    ],
)
def test_what_names_no_set(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not NAME=FOLDER"):
        CoordinatorConfig(ADDRESS, **settings)


@pytest.mark.parametrize("key", ["0" * 63, "G" * 64, "release.key"])
def test_what_is_no_release_key(key: str) -> None:
    with pytest.raises(ConfigError, match="release-key show"):
        CoordinatorConfig(ADDRESS, release_key=key)
