"""Reports as Markdown: what a page says, with foreign text as it is."""

from __future__ import annotations

import pytest

from mien.errors import ConfigError
from mien.shell.pages import (
    Alert,
    Alerts,
    Axis,
    Cell,
    Chart,
    Empty,
    Facts,
    Figure,
    Prose,
    Report,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    columns,
    markdown,
)
from mien.shell.pages.markdown import plain


def report(*sections: Section) -> Report:
    return Report("A title", "What it is.", sections, ("The end.",))


def test_each_kind_of_section_has_its_form() -> None:
    table = Table(
        "t",
        "Table",
        "What it shows",
        columns("Name", "#Number"),
        (("a", "1"), (Cell("b", tone="good", note="a note"), Cell("c0ffee", is_code=True))),
        note="Below it.",
        total=("all", "3"),
    )
    text = markdown(
        report(
            table,
            Facts("f", "Facts", (("Id", Cell("abc", is_code=True)), ("Of", "b"))),
            Prose("p", "List", ("one", "two"), is_list=True),
            Prose("n", "", ("Mind this.",), is_notice=True),
            Tiles("i", "Tiles", (Tile("Rate", "3 %", note="of 9"),)),
            Alerts("a", "Alerts", (Alert("warn", "Look."),), "All is well."),
            Alerts("w", "", (), "All is well."),
            Empty("e", "Empty", "Nothing yet."),
        )
    )
    assert text == (
        "# A title\n\nWhat it is.\n\n## Table\n\nWhat it shows\n\n"
        "| Name | Number |\n| --- | ---: |\n| a | 1 |\n| ✓ b (a note) | `c0ffee` |\n| all | 3 |\n\nBelow it.\n\n"
        "## Facts\n\n- **Id:** `abc`\n- **Of:** b\n\n## List\n\n- one\n- two\n\n> Mind this.\n\n"
        "## Tiles\n\n- **Rate:** 3 % (of 9)\n\n## Alerts\n\n- **△** Look.\n\nAll is well.\n\n"
        "## Empty\n\nNothing yet.\n\nThe end.\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        ("<b>x</b>", r"\<b\>x\</b\>"),
        ("*a* `b` [c](d)", r"\*a\* \`b\` \[c\](d)"),
        ("fixed_embedding and _this_", r"fixed_embedding and \_this\_"),
        ("# no head", r"\# no head"),
        ("1. no list", r"1\. no list"),
        ("0.16", "0.16"),
        ("-0.5", "-0.5"),
        ("1\u202f740", "1\u202f740"),
        ("- none either", r"\- none either"),
        ("two\nlines\n\nand more", "two lines and more"),
        ("60+ and 0-12", "60+ and 0-12"),
        ("$x$ ~y~ \\", r"\$x\$ \~y\~ \\"),
        ("&lt;b&gt; &#124; AT&T; R&D", r"\&lt;b\&gt; \&#124; AT\&T; R&D"),
        ("a\x1b[2Jb\x00\x9bc", r"a \[2Jb c"),
        ("a\u2028# b\x85c", "a # b c"),
        ("a\u202egpj.exe", "agpj.exe"),
    ],
    ids=lambda value: ascii(value)[:16],
)
def test_text_is_shown_as_it_is(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_a_code_that_would_end_early_is_plain_text() -> None:
    text = markdown(report(Facts("f", "F", (("Id", Cell("a`b", is_code=True)),))))
    assert r"- **Id:** a\`b" in text


def test_what_has_no_form_is_refused() -> None:
    axis = Axis(0.0, 1.0, ())
    chart = Chart((Series("s", ((0.0, 0.0), (1.0, 1.0))),), axis, axis)
    with pytest.raises(ConfigError, match="figure has no form in Markdown"):
        markdown(report(Figure("g", "Figure", (chart,), "c", "d")))
