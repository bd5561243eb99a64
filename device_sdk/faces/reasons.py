"""Reasons why a face is not good enough, and hints for the person before the camera."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """One reason to reject a face; `hint` is the sentence to show."""

    TOO_SMALL = "too_small"
    BLURRED = "blurred"
    TOO_DARK = "too_dark"
    TOO_BRIGHT = "too_bright"
    LOW_CONTRAST = "low_contrast"
    TURNED = "turned"
    PITCHED = "pitched"
    ROLLED = "rolled"
    UNCLEAR = "unclear"
    LANDMARKS = "landmarks"
    CUT_OFF = "cut_off"

    @property
    def hint(self) -> str:
        """Advice for the user, as a sentence."""
        return _HINTS[self]


_HINTS: Final = {
    Reason.TOO_SMALL: "The face is too small: move closer.",
    Reason.BLURRED: "The face is blurred: hold still and let the camera focus.",
    Reason.TOO_DARK: "It is too dark: turn on a light or face a window.",
    Reason.TOO_BRIGHT: "It is too bright: step out of the direct light.",
    Reason.LOW_CONTRAST: "The face is washed out: wipe the lens and avoid light from behind.",
    Reason.TURNED: "The head is turned away: look towards the camera.",
    Reason.PITCHED: "The head is raised or lowered: hold the camera at eye height.",
    Reason.ROLLED: "The head is not upright: hold head and camera upright, or turn the picture.",
    Reason.UNCLEAR: "The face is not clear to see: take away what covers it, such as a mask, hand or sunglasses.",
    Reason.LANDMARKS: "Eyes, nose and mouth are not where a face has them: look at the camera with nothing before it.",
    Reason.CUT_OFF: "The face is cut off by the edge: move it into the middle of the picture.",
}
