"""Names as people write them: every script's own characters stay, what nobody sees tells nobody apart."""

from __future__ import annotations

import pytest

from mien.errors import ConfigError
from mien.protocol.names import MAX_NAME, as_written, clean_name, clean_text, isolated, name_key, stored_name

PERSIAN = "\u0639\u0644\u06cc\u200c\u0631\u0636\u0627"
SINHALA = "\u0db4\u0dca\u200d\u0dbb\u0dd2\u0dba\u0db1\u0dca\u0dad"
MALAYALAM = "\u0d05\u0d28\u0d3f\u0d32\u0d4d\u200d"


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        (PERSIAN, PERSIAN),
        (SINHALA, SINHALA),
        (f"{MALAYALAM}\u0d15", f"{MALAYALAM}\u0d15"),
        ("Ana\u00a0Mar\u00eda", "Ana Mar\u00eda"),
        ("  Ana \u2009\u202f Mari\u0301a\u3000", "Ana Mar\u00eda"),
        ("\u2068Ada\u2069\u202e \u200eLovelace", "Ada Lovelace"),
        ("\u200dAda \u200cB\u200c\u200cC", "Ada BC"),
        ("\ufeffA\u00adda\u200b", "Ada"),
        ("\U0001f98a", "\U0001f98a"),
    ],
    ids=["persian", "sinhala", "malayalam", "no-break", "blanks", "directions", "joiners", "unseen", "symbol"],
)
def test_a_name_is_stored_as_it_is_read(written: str, stored: str) -> None:
    assert clean_name(written) == stored
    assert clean_name(stored) == stored


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\u00a0",
        "x" * (MAX_NAME + 1),
        "a\nb",
        "a\tb",
        "\x1b[31m",
        "\u2028",
        "\u200d",
        "\u3164",
        "\ufe0f",
        "\ud800",
    ],
    ids=["none", "blank", "no-break", "long", "line", "tab", "escape", "separator", "joiner", "filler", "look", "half"],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a name needs"):
        clean_name(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PERSIAN, PERSIAN.replace("\u200c", "")),
        ("Ana\u00a0Mar\u00eda", "ANA  MARI\u0301A"),
        ("Stra\u00dfe", "STRASSE"),
        ("\u1f80", "\u1f00\u03b9"),
        ("A\ufe0fda", "ada"),
    ],
    ids=["joiner", "blanks", "case", "iota", "look"],
)
def test_spellings_that_look_alike_are_one_name(one: str, other: str) -> None:
    assert name_key(one) == name_key(other) != name_key("somebody else")


def test_a_text_may_be_empty_and_is_one_line() -> None:
    assert clean_text("") == clean_text("\u00a0") == ""
    assert clean_text(f" {PERSIAN}'s phone ") == f"{PERSIAN}'s phone"
    assert clean_text("two\nlines") is None


@pytest.mark.parametrize("flood", ["\u0301\u0323", "\u200d", " "])
def test_a_text_that_takes_long_to_put_in_order_is_none(flood: str) -> None:
    assert clean_text("a" + flood * 100_000 + "b") is None
    with pytest.raises(ConfigError, match="a name needs"):
        clean_name("a" + flood * 100_000)
    assert as_written(flood * 100_000) == flood * 100_000


@pytest.mark.parametrize("name", ["\u3164", "Ada  L", "A\u2800", "\u0301", PERSIAN])
def test_a_name_that_some_program_stored_stays(name: str) -> None:
    assert stored_name(name) == as_written(isolated(name)) == name


@pytest.mark.parametrize("name", ["", "a\nb", "x" * (MAX_NAME + 1), "\ud800"], ids=["none", "line", "long", "half"])
def test_a_name_that_no_program_stored_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a name needs"):
        stored_name(name)


def test_a_name_turns_nothing_around_it() -> None:
    assert isolated("Ada") == "Ada"
    assert isolated(PERSIAN) == f"\u2068{PERSIAN}\u2069"
    assert clean_name(isolated(PERSIAN)) == PERSIAN
