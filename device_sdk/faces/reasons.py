"""Reasons why a face is not good enough, and hints for the person before the camera."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """One reason to reject a face; `hint` is the sentence to show."""

    hint: str

    TOO_SMALL = "too_small", "The face is too small: move closer."
    BLURRED = "blurred", "The face is blurred: hold still and let the camera focus."
    TOO_DARK = "too_dark", "It is too dark: turn on a light or face a window."
    TOO_BRIGHT = "too_bright", "It is too bright: step out of the direct light."
    LOW_CONTRAST = "low_contrast", "The face is washed out: wipe the lens and avoid light from behind."
    TURNED = "turned", "The head is turned away: look towards the camera."
    PITCHED = "pitched", "The head is raised or lowered: hold the camera at eye height."
    ROLLED = "rolled", "The head is not upright: hold head and camera upright, or turn the picture."
    UNCLEAR = "unclear", "The face is not clear to see: take away what covers it, such as a mask, hand or sunglasses."
    LANDMARKS = (
        "landmarks",
        "Eyes, nose and mouth are not where a face has them: look at the camera with nothing before it.",
    )
    CUT_OFF = "cut_off", "The face is cut off by the edge: move it into the middle of the picture."

    def __new__(cls, word: str, hint: str) -> Self:
        """Return the reason that is called `word`."""
        reason = str.__new__(cls, word)
        reason._value_, reason.hint = word, hint
        return reason
