"""Names of people and notes about them, in every script: how they are stored, compared and shown."""

from __future__ import annotations

import unicodedata
from typing import Final

from mien.errors import ConfigError

MAX_NAME: Final = 80

_MAX_WRITTEN: Final = 1024
"""Longer texts are no names and no notes; to put one in order takes time that grows with its length's square."""

_JOINERS: Final = "\u200c\u200d"
"""Zero-width non-joiner and joiner: letters of Persian, Sinhala, Malayalam and others are written with them."""

_REFUSED: Final = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
_UNSEEN: Final = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u034f")
"""What Unicode counts among letters, marks and symbols, and nobody sees."""
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})


def clean_name(name: str) -> str:
    """Return a name as it is stored, of up to `MAX_NAME` characters; raises ConfigError for what is no name."""
    clean = clean_text(name)
    if clean is None or len(clean) > MAX_NAME or not name_key(clean):
        raise ConfigError(f"a name needs 1-{MAX_NAME} printable characters; choose another")
    return clean


def stored_name(name: str) -> str:
    """Return a name that some program stored: as `clean_name` has it, or as earlier ones did, who took more for names.

    Those kept NFC without outer blanks, of printable characters. Raises ConfigError for what neither would have stored.
    """
    is_earlier = 0 < len(name) <= MAX_NAME and name.isprintable() and as_written(name) == name
    return name if is_earlier else clean_name(name)


def as_written(name: str) -> str:
    """Return a name in NFC, without outer blanks and what `isolated` put around it; one too long for any as it is."""
    return name if len(name) > _MAX_WRITTEN else unicodedata.normalize("NFC", name).strip("\u2068\u2069 ").strip()


def clean_text(text: str) -> str | None:
    """Return one line of text as it is stored, None where it is too long or holds what is no character of a line.

    Unicode NFC; every run of blanks, non-breaking and other ones too, is one space, and none is outermost. Joiners stay
    between two letters or marks; other characters without a look, such as those that turn the direction, go.
    """
    if len(text) > _MAX_WRITTEN:
        return None
    kept: list[str] = []
    for character in unicodedata.normalize("NFC", text):
        category = unicodedata.category(character)
        if category in _REFUSED:
            return None
        if category == "Zs":
            kept.append(" ")
        elif character in _JOINERS or (category != "Cf" and character not in _UNSEEN):
            kept.append(character)
    joined = (
        each
        for index, each in enumerate(kept)
        if each not in _JOINERS or (_joins(kept[:index][-1:]) and _joins(kept[index + 1 : index + 2]))
    )
    return unicodedata.normalize("NFC", " ".join("".join(joined).split()))


def name_key(name: str) -> str:
    """Return what two spellings of one name have in common: without case, joiners and anything else unseen."""
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFD", clean_text(name) or "").casefold())
    seen = "".join(each for each in decomposed if each not in _JOINERS and not _selects_look(each))
    return "" if all(unicodedata.category(each)[0] in "MZ" for each in seen) else seen


def isolated(name: str) -> str:
    """Return a name to be put into a sentence: one that is written from right to left turns nothing around it."""
    turns = any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in name)
    return f"\u2068{name}\u2069" if turns else name


def _joins(beside: list[str]) -> bool:
    return bool(beside) and unicodedata.category(beside[0])[0] in "LM"


def _selects_look(character: str) -> bool:
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
