"""The allocator's setting: what a process frees it has again without asking the system for new pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from mien.shell.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def messages():
    held = [b"x" * (256 << 10) for _ in range(16)]
for _ in range(3):
    messages()
before = faults()
for _ in range(20):
    messages()
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_pages_are_faulted_in_once_and_not_for_every_message() -> None:
    """Twenty times sixteen messages of 256 KiB are 20,480 pages where each is asked for anew."""
    run = subprocess.run([sys.executable, "-c", FAULTS, "kept"], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2_000
