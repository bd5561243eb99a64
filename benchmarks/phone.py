"""What a phone's process weighs: processor time, memory and disk of enrolling, verifying and taking part.

Each is `mien-device` run by itself from the start of Python to its end, with four pictures of one person, in a fleet of
`mien-coordinator quickstart` on this machine; a round of summed statistics (`participate`) has four emulated phones
beside the one that is measured. `cpu_s` is its processor time, `peak_mb` the most memory that it held at once, as
looked at a hundred times a second, and `home_mb` what its folder holds after the round: keys, pictures, model, graphs.
`participate` counts all of a round, from connecting to the sum, the download of the model too.

Phones that train an adapter or a block of the network weigh more; `device` measures a step of those without the
program around it. Quick: ONNX Runtime alone. ExecuTorch is not measured: a quick start's release has no graphs of it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import _common
from benchmarks._load import Program
from benchmarks._quick_start import LAST_WORDS, PROGRAMS, quick_start
from mien.errors import UnreachableError
from simulation.synthetic import committed_faces

ENGINES: Final = ("onnxruntime", "torch")
AIMS: Final = {"verify_cpu_s": 1.0, "verify_peak_mb": 180.0, "participate_peak_mb": 200.0}
EMULATED: Final = 4
LOOK_EVERY_S: Final = 0.01
NO_MATCH: Final = 1


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("phone", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    engines = ENGINES[:1] if args.quick else ENGINES
    with tempfile.TemporaryDirectory(prefix="mien-phone-") as name, quick_start(Path(name)) as fleet:
        rows = [measured(fleet, engine, Path(name) / engine) for engine in engines]
    keys = ("verify_cpu_s", "verify_peak_mb", "enroll_peak_mb", "participate_cpu_s", "participate_peak_mb", "home_mb")
    return {
        **{key: rows[0][key] for key in keys},
        "rows": rows,
        "aims": AIMS,
        "missed": sorted(key for key, aim in AIMS.items() if rows[0][key] > aim),
        "quick": args.quick,
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def measured(fleet: Path, engine: str, folder: Path) -> dict[str, Any]:
    """Return what one phone costs with an engine; `fleet` is a quick start's folder that serves."""
    home, coordinator = ["--home", str(folder / "phone")], ["--home", str(fleet / "coordinator")]
    runtime = ["--runtime", engine]
    folder.mkdir()
    operator = ["--operator", str(fleet / "operator")]
    many = ["--count", str(EMULATED + 1), "--out", str(folder / "invites")]
    run(["mien-coordinator", "device", "invite", *many, *coordinator, *operator])
    first, *others = (folder / "invites").read_text(encoding="utf-8").split()
    (folder / "others").write_text("\n".join(others), encoding="utf-8")
    pictures = [str(each) for each in next(iter(committed_faces("test").values()))]
    found: dict[str, Any] = {"engine": engine}
    found |= run(["mien-device", "join", first, *home], as_="join")
    found |= run(["mien-device", "enroll", "Ada", *pictures[:4], "--consent", *home, *runtime], as_="enroll")
    found |= run(["mien-device", "verify", "Ada", pictures[-1], *home, *runtime], as_="verify", answers=(0, NO_MATCH))
    run(["mien-coordinator", "task", "submit", str(fleet / "task.toml"), *coordinator])
    load = ["mien-sim", "phones", "--invites", str(folder / "others"), "--count", str(EMULATED), "--rounds", "1"]
    with subprocess.Popen(
        [str(PROGRAMS / load[0]), *load[1:], "--out", str(folder / "load")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as emulated:
        agreed = ["--min-cohort", "4", "--allow-reveal", "class_moment"]
        found |= run(["mien-device", "participate", "--rounds", "1", *agreed, *home, *runtime], as_="participate")
        emulated.wait()
    files = (each for each in (folder / "phone").rglob("*") if each.is_file())
    return found | {"home_mb": round(sum(each.stat().st_size for each in files) / 1e6, 1)}


def run(command: Sequence[str], *, as_: str = "", answers: Collection[int] = (0,)) -> dict[str, float]:
    """Return what one run of a command costs, keys beginning with `as_`.

    Raises UnreachableError where its exit code is none of `answers`.
    """
    _common.progress(" ".join(command[:2]))
    peak = 0
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [str(PROGRAMS / command[0]), *command[1:]], stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ) as child,
    ):
        program = Program(child, 0)
        for _ in itertools.count():
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, _peak(program))
            time.sleep(LOOK_EVERY_S)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in answers:
            said.seek(0)
            words = said.read().decode(errors="replace").strip()[-LAST_WORDS:]
            raise UnreachableError(f"{' '.join(command[:2])} ended with {child.returncode}: {words}")
    return {
        f"{as_}_cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        f"{as_}_peak_mb": round(peak / 1e6, 1),
    }


def _peak(program: Program) -> int:
    """Return the peak so far; 0 for a process that has just ended, and has no memory."""
    try:
        return program.peak_bytes
    except (OSError, StopIteration):
        return 0


if __name__ == "__main__":
    main()
