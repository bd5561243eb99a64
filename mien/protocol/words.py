"""Sanitised messages of a server: other people's screens and logs show them."""

from __future__ import annotations

from typing import Final

MAX_WORDS: Final = 1000


def plain_words(text: str) -> str:
    """Return text of the other side without control and format characters, cut off at `MAX_WORDS` characters.

    A terminal obeys such characters: they move the cursor, clear the screen, begin lines or turn the reading direction.
    """
    shown = "".join(_harmless(character) for character in text[:MAX_WORDS])
    return shown if len(text) <= MAX_WORDS else f"{shown[: MAX_WORDS - 1]}…"


def _harmless(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else ""
