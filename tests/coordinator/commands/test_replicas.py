"""How replicas are listed for people."""

from __future__ import annotations

from rich.console import Console

from coordinator.commands.replicas import replica_table
from coordinator.replicas.registry import Replica

FOUND = [
    Replica("0123456789abcdef", "one", "10.0.0.11:7444", "mien/1", 0, 1.2, True, ("east", "west")),
    Replica("fedcba9876543210", "two", "10.0.0.12:7444", "mien/1", 0, 75.0, False),
]


def drawn(width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(replica_table(FOUND, width))
    return capture.get()


def test_a_wide_terminal_shows_all() -> None:
    first, second = [line for line in drawn(200).splitlines() if "10.0.0." in line]
    assert [cell.strip() for cell in first.split("│")[1:6]] == [
        *("0123456789abcdef", "10.0.0.11:7444", "alive", "east, west", "1 s ago"),
    ]
    assert [cell.strip() for cell in second.split("│")[3:6]] == ["gone", "–", "75 s ago"]


def test_a_narrow_one_keeps_ids_whole() -> None:
    text = drawn(80)
    assert "0123456789abcdef" in text
    assert "Not shown here: " in text
