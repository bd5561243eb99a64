"""Settings in layers: what a file states, what is laid over it, and where each value came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mien.errors import ConfigError, CorruptDataError
from mien.shell.settings import read_toml, resolve, value_of


@dataclass(frozen=True)
class Inner:
    size: int = 3
    limit: float | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    word: str = "a"
    inner: Inner = field(default_factory=Inner)


def test_each_layer_lies_over_the_one_before() -> None:
    stated = {"inner": {"size": 5, "names": ["x"]}}
    resolved = resolve(Outer, stated, Path("home/file.toml"), {"inner.size": (7, "--size"), "word": ("b", "MIEN_WORD")})
    assert resolved.config == Outer("b", Inner(7, names=("x",)))
    assert resolved.values() == {"word": "b", "inner.size": 7, "inner.limit": None, "inner.names": ["x"]}
    assert resolved.origins == {
        "word": "MIEN_WORD",
        "inner.size": "--size",
        "inner.limit": "default",
        "inner.names": "file.toml",
    }
    assert stated == {"inner": {"size": 5, "names": ["x"]}}, "what the file states is left as it is"


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'inner\.size'"):
        resolve(Outer, {}, Path("home/file.toml"), {"inner.sise": (1, "--sise")})
    with pytest.raises(ConfigError, match=r"inner is 3; it must be a table, as in \[inner\]"):
        resolve(Outer, {"inner": 3}, Path("home/file.toml"), {"inner.size": (1, "--size")})


def test_the_file_is_named_where_it_is_at_fault_and_not_for_an_option() -> None:
    with pytest.raises(ConfigError, match=r"^home/file\.toml: unknown field 'inner\.sise'; did you mean 'inner\.size'"):
        resolve(Outer, {"inner": {"sise": 1}}, Path("home/file.toml"), {})
    with pytest.raises(ConfigError, match=r"^unknown field 'inner\.sise'"):
        resolve(Outer, {}, Path("home/file.toml"), {"inner.sise": (1, "--sise")})


def test_a_file_that_is_no_toml_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    with pytest.raises(CorruptDataError, match=r"own\.toml is missing"):
        read_toml(path, 100)
    path.write_bytes(b'a = "\xff"\n')
    with pytest.raises(ConfigError, match=r"the task is not valid TOML"):
        read_toml(path, 100, what="the task")
    path.write_text("a = 1\n", encoding="utf-8")
    assert read_toml(path, 100) == {"a": 1}


def test_values_are_written_as_in_toml_and_text_needs_no_quotes() -> None:
    assert [value_of(text) for text in ("3", "0.5", "true", '"3"', "[1, 2]", " plain text ")] == [
        *(3, 0.5, True, "3", [1, 2]),
        "plain text",
    ]
