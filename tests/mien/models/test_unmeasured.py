"""Whoever shows a model loads no evaluation for it."""

from __future__ import annotations

import subprocess
import sys


def test_what_was_not_measured_is_told_without_the_evaluation() -> None:
    """`mien-device status` tells it: the evaluation is a tenth of that command's time."""
    code = "import sys, mien.models.unmeasured; print([m for m in sys.modules if m.startswith('mien.evaluation')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
