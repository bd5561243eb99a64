"""What a phone's process weighs: processor time, memory and disk of enrolling, verifying and taking part.

Each is `mien-device` run by itself from the start of Python to its end, with four pictures of one person, in a fleet of
`mien-coordinator quickstart` on this machine. `participate` is all of a round, from connecting to the sum, the download
of the model too, with four emulated phones beside the one that is measured: of summed statistics, and
(`participate_adapter`, `participate_block`) of a task in which it trains the adapter or block 12, five steps of four
images; each by a phone of its own. `cpu_s` is its processor time, `peak_mb` the most memory that it held at once, as
looked at a hundred times a second, and `home_mb` what its folder holds after the round of statistics: keys, pictures,
model, graphs.

The operator adds both parts' graphs for ONNX Runtime to the quick start's release, which has those that embed alone.
ExecuTorch is not measured: its Python package loads torch, whose memory would be most of what it shows; a phone's
runtime is without. Quick: ONNX Runtime alone, and no block. `device` measures a step without the program around it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
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
AIMS: Final = {
    "verify_cpu_s": 1.0,
    "verify_peak_mb": 180.0,
    "participate_peak_mb": 200.0,
    "participate_adapter_peak_mb": 250.0,
}
EMULATED: Final = 4
PARTS: Final = {"adapter": "adapter.*", "block": "block12.*"}
"""What phones train, by the name of its round; block 12 is what phones train of the network without an adapter."""

TRAINING: Final = """\
name = "{part}"
method = "fedface"
rounds = 1
trainable = ["{trainable}"]

[cohort]
size = {phones}
min_reports = {phones}

[local]
lr = 0.01
momentum = 0.9
steps = 5
batch_size = 4

[privacy]
min_cohort = 4
"""
LOOK_EVERY_S: Final = 0.01
LIMIT_S: Final = 240
"""For so long a command may run: a phone without a round to be in waits for one."""

NO_MATCH: Final = 1
PYTHON: Final = Path(sys.executable).name


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("phone", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    engines, parts = (ENGINES[:1], ("adapter",)) if args.quick else (ENGINES, tuple(PARTS))
    with tempfile.TemporaryDirectory(prefix="mien-phone-") as name, quick_start(Path(name)) as fleet:
        add_training_graphs(fleet, parts)
        rows = [measured(fleet, engine, parts, Path(name) / engine) for engine in engines]
    keys = ("verify_cpu_s", "verify_peak_mb", "enroll_peak_mb", "participate_cpu_s", "participate_peak_mb", "home_mb")
    training = (f"participate_{part}_{figure}" for part in parts for figure in ("cpu_s", "peak_mb"))
    return {
        **{key: rows[0][key] for key in (*keys, *training)},
        "rows": rows,
        "aims": AIMS,
        "missed": sorted(key for key, aim in AIMS.items() if rows[0][key] > aim),
        "quick": args.quick,
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def add_training_graphs(fleet: Path, parts: Sequence[str]) -> None:
    """Sign and release the quick start's model with ONNX Runtime's graphs of the parts that are trained."""
    model, coordinator = str(fleet / "trained"), ["--home", str(fleet / "coordinator")]
    run(["mien-coordinator", "model", "export", "released", model, *coordinator])
    for trainable in map(PARTS.__getitem__, parts):
        objective = ["--objective", "cosface", "--engine", "onnxruntime", "--keep"]
        run([PYTHON, "-m", "device_sdk.export", model, "--trainable", trainable, *objective])
    run(["mien-coordinator", "model", "sign", model, "--key", str(fleet / "release.key")])
    run(["mien-coordinator", "model", "release", "released", "--bundle", model, *coordinator])


def measured(fleet: Path, engine: str, parts: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return what a phone costs with an engine and in training parts; `fleet` is a quick start's folder that serves."""
    runtime = ["--runtime", engine]
    folder.mkdir()
    pictures = [str(each) for each in next(iter(committed_faces("test").values()))]
    found: dict[str, Any] = {"engine": engine}
    for part in ("", *parts):
        at = folder / (part or "statistics")
        at.mkdir()
        first = _invited(fleet, at)
        home = ["--home", str(at / "phone")]
        costs = run(["mien-device", "join", first, *home], as_="join")
        costs |= run(["mien-device", "enroll", "Ada", *pictures[:4], "--consent", *home, *runtime], as_="enroll")
        if not part:
            look = ["mien-device", "verify", "Ada", pictures[-1], *home, *runtime]
            found |= costs | run(look, as_="verify", answers=(0, NO_MATCH))
        found |= _round(fleet, part, at, [*home, *runtime])
        if not part:
            files = (each for each in (at / "phone").rglob("*") if each.is_file())
            found["home_mb"] = round(sum(each.stat().st_size for each in files) / 1e6, 1)
    return found


def _invited(fleet: Path, folder: Path) -> str:
    """Return a phone's invite; those of the emulated phones beside it go into the folder's file `others`."""
    many = ["--count", str(EMULATED + 1), "--out", str(folder / "invites")]
    homes = ["--home", str(fleet / "coordinator"), "--operator", str(fleet / "operator")]
    run(["mien-coordinator", "device", "invite", *many, *homes])
    first, *others = (folder / "invites").read_text(encoding="utf-8").split()
    (folder / "others").write_text("\n".join(others), encoding="utf-8")
    return first


def _round(fleet: Path, part: str, folder: Path, phone: Sequence[str]) -> dict[str, float]:
    """Return what a phone's round costs in which it trains a part, or trains nothing; `phone` are its options."""
    task, agreed = fleet / "task.toml", ["--min-cohort", "4", "--allow-reveal", "class_moment"]
    if part:
        task, agreed = folder / "task.toml", agreed[:2]
        text = TRAINING.format(part=f"{part}-{folder.parent.name}", trainable=PARTS[part], phones=EMULATED + 1)
        task.write_text(text, encoding="utf-8")
    run(["mien-coordinator", "task", "submit", str(task), "--home", str(fleet / "coordinator")])
    load = ["mien-sim", "phones", "--invites", str(folder / "others"), "--count", str(EMULATED), "--rounds", "1"]
    load += ["--idle", str(LIMIT_S)]
    with subprocess.Popen(
        [str(PROGRAMS / load[0]), *load[1:], *(["--replay-updates"] if part else []), "--out", str(folder / "load")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as emulated:
        try:
            command = ["mien-device", "participate", "--rounds", "1", *agreed, *phone]
            return run(command, as_="_".join(("participate", *filter(None, [part]))))
        finally:
            emulated.terminate()


def run(
    command: Sequence[str], *, as_: str = "", answers: Collection[int] = (0,), limit_s: float = LIMIT_S
) -> dict[str, float]:
    """Return what one run of a command costs, keys beginning with `as_`.

    Raises UnreachableError where its exit code is none of `answers`, or after `limit_s`.
    """
    _common.progress(" ".join(command[:3]))
    peak, until = 0, time.monotonic() + limit_s
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
            if time.monotonic() > until:
                child.kill()
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
