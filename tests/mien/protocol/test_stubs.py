"""The generated stubs: what they ask of the libraries that read them is what an installation brings."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.helpers import ROOT

STUBS = ROOT / "mien" / "protocol" / "v1"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize(
    ("package", "stub", "asked"),
    [
        ("grpcio", "rounds_pb2_grpc.py", r"GRPC_GENERATED_VERSION = '([0-9.]+)'"),
        ("protobuf", "rounds_pb2.py", r"Protobuf Python Version: ([0-9.]+)"),
    ],
)
def test_an_installation_brings_no_library_that_the_stubs_refuse(package: str, stub: str, asked: str) -> None:
    """An older one is refused where they are imported; of gRPC, it would also leave a server without any method."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needed,) = re.findall(asked, (STUBS / stub).read_text(encoding="utf-8"))
    floors = {
        extra: numbers(each.partition(">=")[2].partition(",")[0])
        for extra, packages in project["optional-dependencies"].items()
        for each in packages
        if each.startswith(f"{package}>=")
    }
    assert {"device", "coordinator"} <= floors.keys()
    assert {extra: floor for extra, floor in floors.items() if floor < numbers(needed)} == {}
