"""The container image's packages, installed from its locks: a fleet starts, a model is imported, measured, released.

No container engine is needed for that, and none is tried: what the container file adds are a user, a volume and ports.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from device_sdk.models.packaged import sface_path
from tests import wheel
from tests.newcomer.test_operator import Terminal, quick_port
from tests.simulation.program.test_worker import people_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the image's programs."""
    folder = tmp_path_factory.mktemp("image")
    _, built = wheel.distributions(folder / "built")
    python = wheel.environment(folder / "environment", built, wheel.COORDINATOR_LOCK, wheel.DEVICE_LOCK)
    python.with_name("mien-sim").unlink()  # as the container file does
    return python.parent


def test_it_has_no_torch_and_every_program_answers(installed: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'onnx', 'tflite', 'sklearn') if u.find_spec(n)])"
    done = subprocess.run([installed / "python", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "[]\n"
    programs = sorted(path.name for path in installed.glob("mien-*"))
    assert programs == ["mien-coordinator", "mien-device", "mien-registrar"]
    for program in programs:
        done = subprocess.run([installed / program, "--help"], capture_output=True, text=True, check=False, cwd="/")
        assert (done.returncode, done.stderr) == (0, "")


def test_models_are_imported_measured_and_released_in_it(installed: Path, tmp_path: Path) -> None:
    terminal, home = Terminal(tmp_path, installed), "--home fleet/coordinator"
    people_in(tmp_path / "people", 6, 3)
    with terminal.staying(f"mien-coordinator quickstart ./fleet --port {quick_port()}") as ready:
        assert ready["ready"]
        imported = terminal.run(f"mien-coordinator model import {sface_path()} {home}")
        measured = terminal.run(f"mien-coordinator model evaluate {imported['model_id']} --data people {home}")
        assert measured["model_id"] == imported["model_id"]
        assert (measured["mated"], measured["non_mated"]) == (18, 135)
        assert measured["eer"] < 0.3  # renders are harder than photographs; by chance it would be a half
        released = terminal.run(f"mien-coordinator model evaluate released --data people {home}")
        assert released["model_id"] == ready["model_id"]
        assert released["eer"] == pytest.approx(measured["eer"], abs=0.01)
        bundle = f"--graphs bundle --embed-only --key fleet/release.key --release {home}"
        again = terminal.run(f"mien-coordinator model import {sface_path()} {bundle}")
        assert again["model_id"] == imported["model_id"]
        assert (tmp_path / "bundle" / "embed.onnx").is_file()


def test_what_needs_torch_says_so(installed: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, installed)
    (tmp_path / "other.onnx").write_bytes(b"another model")
    with terminal.staying(f"mien-coordinator quickstart ./fleet --port {quick_port()}"):
        done = subprocess.run(
            [installed / "mien-coordinator", "model", "import", "other.onnx", "--home", "fleet/coordinator", "--json"],
            cwd=tmp_path, env=terminal.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["error"] == "missing_dependency"
    assert "is not installed here; run: pip install '.[simulation]'" in told["message"]
