"""Phones of two processors in one round: what the libraries of ARM64 compute is what those of x86-64 do, to float32.

Runs by `make arm64`, which emulates ARM64 (android_demo/tools/arm64); MIEN_ARM64 names the folder that it makes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.runtimes.manifest import folder_for
from device_sdk.storage.home import Home
from mien.methods.statistics import STATISTICS
from mien.specs import CohortSpec, DeadlineSpec
from tests.android.jvm import JvmPhone
from tests.android.story import crops_file
from tests.device_sdk.synthetic import images_of
from tests.helpers import ROOT
from tests.integration.real_fleet import IDENTITIES, RealFleet
from tests.integration.test_statistics import DIM, PART, TINY, statistics_fleet, task
from tests.tiny import made_up_crops

MACHINE: Final = Path(os.environ.get("MIEN_ARM64", "") or "/nonexistent")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not MACHINE.is_dir(), reason="MIEN_ARM64 names no folder: make arm64 in Mien's folder"),
]
EMULATED: Final = ("qemu-aarch64", "-L", str(MACHINE / "root"))
JAVA: Final = (*EMULATED, str(MACHINE / "root" / "usr" / "lib" / "jvm" / "java-17-openjdk-arm64" / "bin" / "java"))
PYTHON: Final = (*EMULATED, str(MACHINE / "root" / "usr" / "bin" / "python3.11"))
PATIENCE_S: Final = 900.0
# Sums of float32 in another order: features differ by a few units of the last place, their products by twice as many.
TOLERANCE: Final = 1e-5


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with statistics_fleet(tmp_path_factory.mktemp("statistics")) as running:
        yield running


def python_phone(fleet: RealFleet, folder: Path, name: str, *start: str) -> subprocess.Popen[str]:
    """Start a phone by that Python, whose owner is the same person on both machines."""
    shutil.copytree(fleet.folder / "graphs", Home(folder / name).graphs)
    photographs = map(str, images_of(IDENTITIES[0])[:5])
    words = (str(folder / name), fleet.invite("arm64"), str(folder / f"sent-{name}"), *photographs)
    path = os.pathsep.join((str(ROOT), *((str(MACHINE / "site"),) if start[0] == EMULATED[0] else ())))
    script = str(ROOT / "tests" / "android" / "python_phone.py")
    return subprocess.Popen(
        [*start, script, *words],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def jvm_phone(fleet: RealFleet, folder: Path, name: str, seed: int, *java: str) -> JvmPhone:
    """Start a phone of the JVM with four crops of one person."""
    return JvmPhone.start(
        java,
        home=folder / name,
        invite=fleet.invite("arm64"),
        crops=crops_file(folder, f"crops-{name}", made_up_crops(4, seed=seed)),
        graphs=folder_for(fleet.folder / "graphs", TINY.layout),
        sent=folder / f"sent-{name}",
        min_cohort=3,
        reveals="class_moment",
    )


def test_the_same_faces_give_the_same_sums_on_both_processors(
    fleet: RealFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two phones of the JVM and one of Python on each processor, in one round under secure aggregation."""
    deadlines = DeadlineSpec(PATIENCE_S, PATIENCE_S, *(PATIENCE_S / 2,) * 5)
    spec = replace(task("arm64", "plda"), cohort=CohortSpec(size=6, min_reports=6), deadlines=deadlines)
    task_id = fleet.submit(spec)
    jvm = {
        f"{machine}-{seed}": jvm_phone(fleet, tmp_path, f"{machine}-{seed}", seed, *java)
        for machine, java in (("arm64", JAVA), ("x86", ("java",)))
        for seed in (90, 91)
    }
    python = {
        f"{machine}-python": python_phone(fleet, tmp_path, f"{machine}-python", *start)
        for machine, start in (("arm64", PYTHON), ("x86", (sys.executable,)))
    }
    try:
        for phone in jvm.values():
            last = phone.end(limit_s=PATIENCE_S)[-1]
            assert last.get("kind") == "COUNTED", last
        told = {name: phone.communicate(timeout=PATIENCE_S)[0] for name, phone in python.items()}
    finally:
        for process in (*python.values(), *(phone.process for phone in jvm.values())):
            process.kill()
    assert told["arm64-python"].splitlines()[-1] == "aarch64 6 phones", told["arm64-python"]
    assert told["x86-python"].splitlines()[-1] == "x86_64 6 phones", told["x86-python"]
    (report,) = fleet.outcome(task_id)
    assert report.num_reports == 6

    layout = STATISTICS.contribution_layout(spec, PART, DIM)

    def sent(name: str) -> NDArray[np.float32]:
        return layout.parse((tmp_path / f"sent-{name}").read_bytes()).vector

    for name in ("90", "91", "python"):
        theirs, ours = sent(f"arm64-{name}"), sent(f"x86-{name}")
        differ = float(np.abs(theirs - ours).max())
        with capsys.disabled():
            sys.stdout.write(f"\n{name}: ARM64 and x86-64 differ by {differ:.1e} at most, of {np.abs(ours).max():.2f}")
        assert np.abs(ours).max() > 0.1
        np.testing.assert_allclose(theirs, ours, atol=TOLERANCE)
