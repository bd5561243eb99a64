"""The table of methods is that of both registries."""

from __future__ import annotations

from scripts.write_method_parity import LEFT_OUT, PAGE, jvm_methods, python_methods, table, written


def test_the_table_is_written_from_both_registries() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run python -m scripts.write_method_parity"


def test_who_may_train_is_the_same_in_both_languages() -> None:
    python, jvm = python_methods(), jvm_methods()
    assert jvm == {name: python[name] for name in jvm}


def test_every_method_that_the_jvm_lacks_says_why() -> None:
    assert set(python_methods()) - set(jvm_methods()) <= set(LEFT_OUT) <= set(python_methods())


def test_every_method_of_the_jvm_is_tested_there() -> None:
    untested = [line for line in table().splitlines()[2:] if line.endswith("| – |") and "| no |" not in line]
    assert not untested
