"""TOML: values, and one error for whatever is wrong."""

from __future__ import annotations

import pytest

from mien.errors import ConfigError
from mien.records import parse_toml


def test_values() -> None:
    assert parse_toml('a = 1\n[b]\nc = "d"\n', "it") == {"a": 1, "b": {"c": "d"}}
    assert parse_toml("\ufeffa = 1\r\n", "what Windows' editor saved") == {"a": 1}


@pytest.mark.parametrize(
    "text", ["a = ", "a = 1\na = 2", f"a = {'9' * 5000}", "a = " + "[" * 10_000, "a = {b=" * 5000, "d = 2021-02-31"]
)
def test_whatever_is_wrong_is_one_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.toml is n"):
        parse_toml(text, "task.toml")
