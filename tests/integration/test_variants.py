"""A model with graphs and an int8 variant in one command, and a phone that chooses between its forms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from device_sdk.people.verify import Match, Unknown
from device_sdk.program.cli import app
from mien.errors import ModelMismatchError
from mien.protocol.canonical import model_to_json
from tests.device_sdk.synthetic import images_of
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, small_model, with_model
from tests.integration.test_operating import program
from tests.tiny import made_up_crops

CLI = "coordinator.commands.cli"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A release key's file, and its name."""
    path = tmp_path_factory.mktemp("stick") / "release.key"
    made = json.loads(program(CLI, "release-key", "init", str(path), "--json").stdout)
    return path, made["release_key"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, key: tuple[Path, str]) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("variants"), release_key=key[1]) as running:
        yield running


@pytest.fixture(scope="module")
def bundle(fleet: RealFleet, key: tuple[Path, str]) -> Path:
    """What `model import` made, signed and released in one go."""
    model, source, faces = small_model(), fleet.folder / "source", fleet.folder / "faces"
    source.mkdir()
    (source / "model.json").write_bytes(model_to_json(model.spec, model.layout))
    (source / "theta.f32").write_bytes(np.ascontiguousarray(model.theta, "<f4").tobytes())
    for number in range(24):
        (faces / str(number)).mkdir(parents=True)
        for picture, crop in enumerate(made_up_crops(5, seed=number, spread=15)):
            Image.fromarray(crop).save(faces / str(number) / f"{picture}.png")
    out, home = fleet.folder / "bundle", ("--home", str(fleet.coordinator.home.folder), "--json")
    making = ("--graphs", str(out), "--int8-faces", str(faces), "--aligned", "--key", str(key[0]), "--release")
    done = program(CLI, "model", "import", str(source), *making, *home)
    made = json.loads(done.stdout)
    assert (made["model_id"], made["released"], made["bundle"]) == (model.model_id, True, str(out))
    assert made["has_threshold"] is False  # these faces are too few for phones' 0.001
    assert re.search(r"int8 variant: .*false match rate", " ".join(done.stderr.split()))
    again = program(CLI, "model", "import", str(source), *making, *home, check=False)
    assert (again.returncode, "name a new folder" in again.stderr) == (16, True)
    return out


def test_a_phone_enrols_and_verifies_in_int8_and_goes_back(fleet: RealFleet, bundle: Path) -> None:
    listed = {path.name for path in bundle.iterdir()}
    for name in ("model.json", "manifest.json"):  # the model's own thresholds were measured before it was signed
        signed = json.loads((bundle / name).read_bytes())
        assert min(each["fmr"] for each in signed.get("spec", signed)["thresholds"]) <= 0.01
    assert {"model.json", "theta.f32", "graphs.json", "embed.onnx", "int8.variant", "variants.json"} <= listed
    (variant,) = json.loads((bundle / "variants.json").read_bytes())["variants"]
    form = f"{small_model().model_id}:{variant['sha256']}"

    # Random weights recognise nobody: what is looked at is which form decides, under which threshold.
    options: dict[str, Any] = {"inference.tier": "int8", "runtime": "onnxruntime", "verification.max_fmr": 0.01}
    options["enrollment.min_images"] = 1
    with fleet.phone("phone", "default", IDENTITIES[0], **options) as phone:
        assert phone.gallery.form_id == form
        outcome = phone.verify("Owner", images_of(IDENTITIES[0])[0])
        assert isinstance(outcome, Match | Unknown)
        assert outcome.operating.value == variant["thresholds"][0]["value"]
        with pytest.raises(ModelMismatchError):
            phone.gallery.references(small_model().model_id)
        assert phone.status().tier == "int8"
        assert phone._abilities().backbones == ("mobilefacenet_folded",)  # the graphs came with the release

    home = ("--home", str(fleet.folder / "phone"))
    (fleet.folder / "phone" / "device.toml").write_text("[verification]\nmax_fmr = 0.01\n[inference]\nmax_ms = 1e6\n")
    looked = CliRunner().invoke(app, ["bench", *home, "--json"])
    lines = json.loads(looked.stdout.strip().splitlines()[-1])
    assert [each["tier"] for each in lines["forms"]] == ["float32", "int8"]
    assert (lines["chosen"], lines["saved"], lines["in_use"]) == ("float32", False, None)
    assert "false match rate of 0.01" in lines["forms"][1]["cost"]
    kept = CliRunner().invoke(app, ["bench", *home, "--save"])
    assert (kept.exit_code, "used in float32 from now on" in " ".join(kept.stdout.split())) == (0, True)
    with fleet.open("phone") as phone:
        assert phone.config.inference.tier == "float32"
        assert phone.gallery.form_id == small_model().model_id
    refused = CliRunner().invoke(app, ["bench", *home, "--save", "--tier", "int4"])
    assert "no such variant" in str(refused.exception)


def test_another_signature_keeps_the_graphs_and_the_variant_and_another_models_says_what_it_lacks(
    fleet: RealFleet, bundle: Path, key: tuple[Path, str]
) -> None:
    home = ("--home", str(fleet.coordinator.home.folder))
    anew = fleet.folder / "anew"
    told = program(CLI, "model", "export", "released", str(anew), *home).stdout
    assert "does not" not in told
    files = json.loads(program(CLI, "model", "sign", str(anew), "--key", str(key[0]), "--json").stdout)["files"]
    assert files == [file["name"] for file in json.loads((bundle / "manifest.json").read_bytes())["files"]]
    assert all((anew / name).read_bytes() == (bundle / name).read_bytes() for name in files)

    other = with_model(small_model(), small_model().theta * np.float32(1.01))
    source = fleet.folder / "other"
    source.mkdir()
    (source / "model.json").write_bytes(model_to_json(other.spec, other.layout))
    (source / "theta.f32").write_bytes(np.ascontiguousarray(other.theta, "<f4").tobytes())
    program(CLI, "model", "import", str(source), *home)
    poorer = fleet.folder / "poorer"
    lost = "does not: the graphs for phones without torch and the int8 variant. To keep that"
    next_ = f"python -m device_sdk.export {poorer} --int8-faces FACES"
    said = " ".join(program(CLI, "model", "export", other.model_id, str(poorer), *home).stdout.split())
    assert (lost in said, next_ in said) == (True, True)
    program(CLI, "model", "sign", str(poorer), "--key", str(key[0]))
    release = ("model", "release", other.model_id, "--bundle", str(poorer), *home)
    refused = program(CLI, *release, check=False)
    assert refused.returncode == 2
    assert "was not released. Phones recognise nobody with it" in " ".join(refused.stderr.split())
    said = " ".join(program(CLI, *release, "--without-thresholds").stdout.split())
    assert (lost in said, next_ in said) == (True, True)
    assert "Phones recognise nobody with it: it has no threshold" in said
    flag = f"--keep-thresholds --home {fleet.coordinator.home.folder}"
    assert f"{flag}, then export, sign and release it again: thresholds are signed, too" in said
