"""What each package offers others, pinned; and that its door costs nothing before a name is used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

DOORS = {
    "mien": [
        "METHODS",
        "ContributionLayout",
        "FaceInputSpec",
        "Lane",
        "Method",
        "MienError",
        "ModelSpec",
        "ParameterLayout",
        "PrivacySpec",
        "TaskSpec",
        "find_method",
    ],
    "simulation": [
        "Cohort",
        "Experiment",
        "PublicFaces",
        "Run",
        "RunFolder",
        "RunSpec",
        "choose",
        "frame_of",
        "run_experiment",
        "run_task",
    ],
    "simulation.testing": [
        "LAYOUT",
        "SHORT_S",
        "SPEC",
        "STEP_LIMIT_S",
        "THETA",
        "DeviceCredentials",
        "FakeDevice",
        "FakeFleet",
        "FakePart",
        "Sent",
        "answer",
        "contribution",
        "free_port",
        "layout_of",
        "masked_task",
        "patiently",
        "ref_of",
        "running_out",
        "tiny_task",
    ],
    "coordinator": [
        "Coordinator",
        "CoordinatorConfig",
        "CoordinatorHome",
        "OperatorCredentials",
        "RegistrarAdmin",
        "RegistrarConfig",
        "RegistrarHome",
        "connect",
        "connect_admin",
        "running",
    ],
}
"""The phone's door has a test of its own (`tests/device_sdk/test_public.py`)."""


@pytest.mark.parametrize("package", DOORS)
def test_the_public_names_are_these(package: str) -> None:
    found = importlib.import_module(package)
    assert found.__all__ == DOORS[package]
    assert set(DOORS[package]) <= set(dir(found))


@pytest.mark.parametrize("name", [f"{package}.{name}" for package, names in DOORS.items() for name in names])
def test_every_public_name_is_there_and_documented(name: str) -> None:
    package, _, own = name.rpartition(".")
    found = getattr(importlib.import_module(package), own)
    assert own.isupper() or found.__doc__


@pytest.mark.parametrize("package", DOORS)
def test_a_name_that_is_not_public_is_an_error(package: str) -> None:
    with pytest.raises(AttributeError, match="run_tusk"):
        getattr(importlib.import_module(package), "run_tusk")  # noqa: B009


@pytest.mark.parametrize("package", DOORS)
def test_a_door_loads_nothing_large(package: str) -> None:
    code = f"import sys, {package}; print(*{{'torch', 'numpy', 'grpc', 'sqlalchemy', 'cv2'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
