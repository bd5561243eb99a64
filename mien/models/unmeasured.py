"""What users ask of a recogniser first and no group of its model tells, for whoever shows a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from mien.specs import GroupRate

SUBJECTS: Final[Mapping[str, str]] = {
    "children up to 12 years": r"child|kid|infant|\b\d[-–]1[0-2]\b",
    "young people of 13 to 19": r"teen|adolescent|young|\b13[-–]1[789]\b",
    "people of 60 years and more": r"senior|elder|\b6[05]\+|\b6[05][-–]",
    "women and men apart": r"\b(?:sex|gender|women|men|female|male|woman|man)\b",
    "skin tones and origins apart": r"skin|fitzpatrick|race|ethnic|origin|ancestry|african|asian|indian",
    "twins and other close relatives": r"twin|sibling|relative|kin\b",
    "faces with masks or other covers": r"mask|cover|occlu|veil",
}
"""What users ask of a recogniser first, and the words by which a group of a file is known to be about it."""

ALWAYS_UNMEASURED: Final = (
    "photographs taken many years apart",
    "pictures, films and masks held before the camera (no liveness check comes with a model)",
)


def never_measured(groups: Iterable[GroupRate]) -> list[str]:
    """Return those of `SUBJECTS` that no group of a model is about which its people were enough to tell of."""
    told = [f"{each.attribute} {each.group}".casefold() for each in groups if each.verdict != "too_small"]
    return [subject for subject, words in SUBJECTS.items() if not any(re.search(words, text) for text in told)]
