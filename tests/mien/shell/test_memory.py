"""A process's memory: what it frees it has again without asking for new pages, and a crash writes none of it out."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from mien.shell.files import map_limited
from mien.shell.memory import forget_pages

UNMAPPABLE: Final = Path("/sys/devices/system/cpu/online")

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


FREED = """
import sys
from mien.shell.memory import return_freed_memory
def held_bytes():
    with open("/proc/self/statm") as file:
        return 4096 * int(file.read().split()[1])
held = [b"x" * 60_000 for _ in range(1_000)]
kept = held[::50]  # what is between them is a hole each
del held
before = held_bytes()
if sys.argv[1] == "returned":
    return_freed_memory()
print(before - held_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_holes_between_what_is_held_go_back() -> None:
    """They are 60 MB less what is kept, which is at both ends too."""
    gone = [
        int(subprocess.run([sys.executable, "-c", FREED, how], capture_output=True, text=True, check=True).stdout)
        for how in ("left", "returned")
    ]
    assert gone[0] < 10_000_000 < 40_000_000 < gone[1]


MAPPED = """
import mmap, sys
import numpy as np
from mien.shell.files import map_limited
from mien.shell.memory import forget_pages
from pathlib import Path
path = Path(sys.argv[1])
values = np.frombuffer(map_limited(path, 2**30, what="it"), np.float32)
def in_memory():
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return next(int(line.split()[1]) for each in lines if path.name in each for line in lines if "Rss" in line)
for forget in (False, True):
    total = float(values.sum())
    if forget:
        forget_pages(values[3:].reshape(-1, 1))
    print(in_memory(), total, float(values.sum()))
forget_pages(np.zeros(3))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what is in memory is read from /proc")
def test_what_lies_in_a_file_leaves_the_memory_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "values").write_bytes(b"\0\0\x80\x3f" * 250_000)
    run = [sys.executable, "-c", MAPPED, str(tmp_path / "values")]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[1:] for line in lines] == [["250000.0", "250000.0"]] * 2
    assert int(lines[0].split()[0]) > 900, "kilobytes: all of it was looked at"
    assert int(lines[1].split()[0]) == 0


@pytest.mark.skipif(not UNMAPPABLE.exists(), reason="a file system that maps no files is that of Linux's settings")
def test_where_no_file_can_be_mapped_one_is_read() -> None:
    with UNMAPPABLE.open("rb") as file, pytest.raises(OSError, match="No such device"):
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = map_limited(UNMAPPABLE, 2**20, what="it")
    assert data == UNMAPPABLE.read_bytes()
    assert data
    forget_pages(np.frombuffer(data, np.uint8))


LOOKS = """
import gc, sys
from mien.shell.memory import collect_rarely
held = [[] for _ in range(50_000)]
if sys.argv[1:] == ["rarely"]:
    collect_rarely()
looked = list()
gc.callbacks.append(lambda phase, told: looked.append(told["generation"]))
made = [[] for _ in range(9_000)]
print(len(looked), len(gc.get_objects()) < 50_000)
"""


def test_a_server_looks_for_cycles_rarely_and_not_among_what_stays() -> None:
    printed = [
        subprocess.run([sys.executable, "-c", LOOKS, *how], capture_output=True, text=True, check=True).stdout.split()
        for how in ([], ["rarely"])
    ]
    assert int(printed[0][0]) > 0  # how often without it is the interpreter's matter: after 700 or 2,000 objects
    assert printed[1] == ["0", "True"]


CRASH = """
import ctypes, importlib, os, resource, sys
import typer
program, folder = sys.argv[1:]
os.chdir(folder)
main = importlib.import_module(program).main
def crash(*_, **__):
    print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)
    os.abort()
typer.Typer.__call__ = crash
main()
"""
"""A program that crashes as soon as it has begun; 3 asks prctl whether the process may be dumped."""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
@pytest.mark.parametrize(
    "program",
    [
        "coordinator.commands.cli",
        "coordinator.commands.registrar_cli",
        "device_sdk.program.cli",
        "simulation.program.cli",
    ],
)
def test_no_program_leaves_its_memory_behind_when_it_crashes(program: str, tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", CRASH, program, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == -signal.SIGABRT, run.stderr
    assert run.stdout.strip() == "(0, 0) 0"
    assert list(tmp_path.iterdir()) == []


OWN = """
import ctypes
from mien.shell.memory import own_proc_files, refuse_core_dumps
def may_be_dumped():
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
refuse_core_dumps()
with own_proc_files():
    print(may_be_dumped())
try:
    with own_proc_files():
        raise KeyError
except KeyError:
    print(may_be_dumped())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_process_has_its_own_files_in_proc_for_the_length_of_a_block() -> None:
    run = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "0"]
