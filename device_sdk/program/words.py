"""The SDK's texts in the words of `mien-device`: one table from calls and settings to commands and options.

Errors, reasons and events of `device_sdk` name Python's calls (`Device.update()`), arguments (`anyway=True`) and
settings (`participation.min_cohort = 12`), in backticks: an app that shows or logs them has no command line. The
program says the same with what a person types. A test finds a command in the SDK's texts, and a call that this table
does not know.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Final

_Replacement = str | Callable[[re.Match[str]], str]


def _options(option: str) -> Callable[[re.Match[str]], str]:
    """Return what writes a setting's list, matched as JSON, as one option repeated, and leaves what is none as it is.

    Texts quote what servers say, in which such a setting may stand too; values are quoted for a shell.
    """

    def written(found: re.Match[str]) -> str:
        try:
            values = json.loads(found[1])
        except (ValueError, RecursionError):
            return found[0]
        return " ".join(f"{option} {shlex.quote(str(value))}" for value in values)

    return written


TABLE: Final[tuple[tuple[str, _Replacement], ...]] = (
    (r"call `Device\.update\(\)`", "run `mien-device update`"),
    (r"call `Device\.join\(\)`", "run `mien-device join`"),
    (r"call `Device\.enroll\(\)`", "run `mien-device enroll`"),
    (r"call `Device\.personalise\(\)`", "run `mien-device personalise`"),
    (r"call `Device\.set_consent\(\)`", "run `mien-device gallery consent NAME --give`"),
    (r"see `Device\.set_consent\(\)`", "see `mien-device gallery consent`"),
    (r"`Device\.people\(\)`", "`mien-device gallery list`"),
    (r"`Device\.export\(\)`", "`mien-device gallery export`"),
    (r"`Device\.wipe\(\)`", "`mien-device gallery wipe`"),
    (r'`Device\.update\(\)` with `runtime="(\w+)"`', r"`mien-device update --runtime \1`"),
    (r'`device_sdk\.export` with `engine="(\w+)"`', r"`python -m device_sdk.export MODEL --out FOLDER --engine \1`"),
    (r"`max_batch` or `max_classes`", "--max-batch or --max-classes"),
    (r"`device_sdk\.export`", "`python -m device_sdk.export MODEL --out FOLDER`"),
    (r"another program that takes part\b", "another mien-device participate"),
    (r"another program is changing", "another mien-device is changing"),
    (r"in use by another program\b", "in use by another mien-device"),
    (r"`anyway=True`", "--anyway"),
    (r"`add=True`", "--add"),
    (r"`validate=True`", "--validate"),
    (r"`enrollment\.min_images`", "--min-images"),
    (r"`home`", "--home"),
    (r'`keystore="file"`', "--keystore file"),
    (r"`keystore`", "--keystore"),
    (r"`runtime`", "--runtime"),
    (r"`source`", "--source"),
    (r"`participation\.person`", "--person"),
    (r"`participation\.min_cohort = (\d+)`", r"--min-cohort \1"),
    (r"`participation\.allow_reveal = (\[.*?\])`", _options("--allow-reveal")),
    (r"`participation\.allow_profiles = (\[.*?\])`", _options("--allow-profile")),
    (r"`participation\.allow_plain_sums = true`", "--allow-plain-sums"),
    (r"`participation\.allow_evaluation = true`", "--evaluation"),
    (r"`(participation\.outside_methods = \[.*?\])`", r"\1 in its settings"),
    (r"`verification\.max_fmr`", "--max-fmr"),
    (r"`verification\.max_fpir`", "--max-fpir"),
    (r"`verification\.threshold`", "--threshold"),
    (
        r"measure this model's thresholds and sign it anew",
        "run `mien-coordinator model evaluate released --data FACES --keep-thresholds` and sign this model anew "
        "(`model export`, `model sign`, `model release --bundle`)",
    ),
    (
        r"measure this model's thresholds on more people",
        "measure the model on more people (`mien-coordinator model evaluate --keep-thresholds`)",
    ),
    (
        r"measure this model's thresholds",
        "run `mien-coordinator model evaluate released --data FACES --keep-thresholds`",
    ),
    (
        r"make the variant anew from more public faces",
        "make the variant anew from more public faces (`mien-coordinator model import --int8-faces`)",
    ),
)
"""What the SDK says, as a regular expression, and what the program says in its place; applied in this order."""


def typed(text: str) -> str:
    """Return a text of the SDK in words of the command line."""
    for pattern, words in TABLE:
        text = re.sub(pattern, words, text)
    return text
