"""The public names, and that using them costs nothing before it has to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import device_sdk


def test_the_public_names_are_these() -> None:
    assert device_sdk.__all__ == [
        "Conditions",
        "Counted",
        "Device",
        "DeviceStatus",
        "Enrollment",
        "Event",
        "Frame",
        "Identity",
        "LowQuality",
        "Match",
        "ModelUpdate",
        "MultipleFaces",
        "NoFace",
        "NotCounted",
        "Operating",
        "Outcome",
        "PadCheck",
        "Person",
        "Personalised",
        "PresentationAttack",
        "RefusedImage",
        "StatedConditions",
        "SystemConditions",
        "Transfer",
        "Unknown",
        "Wait",
        "errors",
        "verify_pair",
    ]
    assert dir(device_sdk) == sorted(device_sdk.__all__)


@pytest.mark.parametrize("name", device_sdk.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(device_sdk, name)
    assert name == "Outcome" or found.__doc__


def test_what_it_raises_is_public(tmp_path: Path) -> None:
    from device_sdk import Device, errors

    with Device.open(tmp_path / "home", options={"keystore": "file"}) as device:
        with pytest.raises(errors.NotEnrolledError):
            device.gallery.person("Ada")
        with pytest.raises(errors.MienError):
            device.join("mien://join?...")


def test_a_name_that_is_not_public_is_an_error() -> None:
    with pytest.raises(AttributeError, match="Devise"):
        device_sdk.Devise  # noqa: B018


def test_device_methods_are_these() -> None:
    public = {name for name in vars(device_sdk.Device) if not name.startswith("_")}
    assert public == {
        "open",
        "close",
        "join",
        "relocate",
        "renew_certificate",
        "identity",
        "is_in_fleet",
        "gallery",
        "attempts",
        "people",
        "enroll",
        "verify",
        "verify_pair",
        "identify",
        "remove",
        "set_consent",
        "export",
        "restore",
        "rotate_keys",
        "renew",
        "personalise",
        "forget_personal",
        "tell_participation",
        "wipe",
        "recogniser",
        "operating_point",
        "update",
        "lacks_threshold",
        "log_files",
        "offered_variants",
        "participate",
        "connect",
        "status",
    }


def test_the_whole_package_imports_without_torch() -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        "sys.modules['torch'] = None\n"
        "exporter = ['build', 'decompositions', 'executorch_rules', 'onnx_graph', 'pte_graph', 'rewrites', 'steps']\n"
        "exporter += ['variants']\n"
        "engines = ['torch_runtime', 'executorch_runtime', 'objectives']\n"
        "torchs = [f'device_sdk.runtimes.{name}' for name in engines]\n"
        "torchs += [f'device_sdk.export.{name}' for name in exporter]\n"
        "import device_sdk\n"
        "for name in device_sdk.__all__: getattr(device_sdk, name)\n"
        "for module in pkgutil.walk_packages(device_sdk.__path__, 'device_sdk.'):\n"
        "    if module.name not in torchs:\n"
        "        importlib.import_module(module.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
