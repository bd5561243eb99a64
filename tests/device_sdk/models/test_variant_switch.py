"""A phone that changes between forms of its model: all templates at once, with their threshold, also when killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.config import InferenceConfig
from device_sdk.device import Device
from device_sdk.models.models import Model
from device_sdk.models.variants import VariantStore, load_variant
from device_sdk.program import benching
from device_sdk.program.bench import EngineFigures
from device_sdk.program.benching import Looked
from device_sdk.program.kept_settings import keep_setting
from device_sdk.program.tiers import FormFigures
from device_sdk.rounds.events import Event
from device_sdk.server.identity import IdentityFiles
from device_sdk.storage.home import Home
from device_sdk.storage.keystore import open_key_store
from mien.errors import ConfigError, CorruptDataError, ModelMismatchError, UnreachableError
from mien.layout import model_id
from mien.models import bundles
from mien.models.bundles import BundleFile
from mien.models.variants import Variant, VariantList
from mien.protocol.canonical import model_to_json
from mien.protocol.v1 import common_pb2, models_pb2
from mien.specs import GroupRate, ModelSpec, Threshold
from tests.device_sdk.made_up_people import SPEC, noise_crops
from tests.device_sdk.made_up_variants import graph, variant
from tests.device_sdk.models.test_release_switch import KEY, LAYOUT, Projection
from tests.device_sdk.scripted import Fleet, Script, scripted_coordinator

DYING = """
import os, signal, sys
from pathlib import Path
from device_sdk.people.gallery import Gallery
from device_sdk.models.models import ModelStore
from device_sdk.models.releases import ReleaseGuard
from device_sdk.models.variants import VariantStore
from tests.device_sdk.models.test_variant_switch import opened

home, tier, when, step = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
steps = {"fetch": VariantStore, "accept": ReleaseGuard, "keep": VariantStore, "reembed": Gallery,
         "keep_only": VariantStore}
whole = getattr(steps[step], step)

def dies(*args, **kwargs):
    if when == "after":
        whole(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(steps[step], step, dies)
opened(home, tier).update()
"""
GRAPHS = {name: graph(seed) for seed, name in enumerate(("first", "anew"))}


def opened(home: Path, tier: str | None = "float32", tell: list[Event] | None = None) -> Device:
    """Return the phone in a folder, whose owner wants that form of the model; None: the one in device.toml."""
    projection: Callable[[Model], Any] = lambda _model: Projection()  # noqa: E731  (only `embed` is called)
    return Device.open(
        home,
        options={"keystore": "file", "inference.tier": tier},
        runtime_loader=projection,
        tell=lambda event: None if tell is None or not isinstance(event, Event) else tell.append(event),
    )


@dataclass(frozen=True)
class Offer:
    """A signed release, how a coordinator offers it, and the files that come with it, by hash."""

    manifest: models_pb2.ModelManifest
    blobs: dict[str, bytes] = field(repr=False)
    model: str

    @classmethod
    def of(
        cls,
        sequence: int,
        variants: Sequence[tuple[Variant, bytes]],
        *,
        seed: int = 1,
        raw: bytes = b"",
        groups: tuple[GroupRate, ...] | None = None,
    ) -> Offer:
        """Return release `sequence` of a model (its `seed`) with variants; `raw` is listed in place of their list."""
        theta = np.full(6, seed, "<f4")
        model = model_id(LAYOUT.sha256, theta.astype(np.float32))
        measured = Threshold(0.3, 0.001, "faces", 10, 30_000, model, "2026-01-01")
        spec_json = model_to_json(
            ModelSpec("tiny", LAYOUT.sha256, SPEC, "made up", "none", ("w",), (measured,), groups), LAYOUT
        )
        files = {"theta.f32": theta.tobytes()} | {each.file: data for each, data in variants}
        if variants or raw:
            files["variants.json"] = raw or VariantList(tuple(each for each, _ in variants)).to_json()
        listed = [BundleFile.of(name, data) for name, data in files.items()]
        data = bundles.manifest_of(spec_json, model, listed, sequence=sequence).to_json()
        manifest = models_pb2.ModelManifest(
            model_id=model,
            spec_json=spec_json,
            theta=common_pb2.BlobRef(sha256=listed[0].sha256, size_bytes=24),
            released=True,
            bundle_manifest=data,
            bundle_signature=bundles.sign(KEY, data),
        )
        return cls(manifest, {file.sha256: files[file.name] for file in listed}, model)


MODEL = Offer.of(1, []).model
FIRST = variant(MODEL, GRAPHS["first"])
PLAIN = Offer.of(5, [(FIRST, GRAPHS["first"])])
ANEW = Offer.of(6, [(variant(MODEL, GRAPHS["anew"]), GRAPHS["anew"])])
STRICTER = Offer.of(6, [(variant(MODEL, GRAPHS["first"], threshold=0.95), GRAPHS["first"])])


@dataclass
class Shop:
    """A coordinator that offers one release at a time, and a phone that uses float32."""

    home: Path
    script: Script

    def offer(self, offer: Offer, **blobs: bytes) -> None:
        self.script.manifest = lambda: offer.manifest
        self.script.blobs = {**offer.blobs, **blobs}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("variants") / "phone", Script())
    home = Home.open(shop.home)
    files = IdentityFiles(home, open_key_store(home.folder, "file", warn=lambda _message: None))
    fleet = replace(Fleet.create(), key=files.key())
    shop.offer(PLAIN)
    with scripted_coordinator(fleet, shop.script) as address:
        files.save(fleet.identity(address, release_key=bundles.name_of(KEY)))
        with opened(shop.home) as phone:
            recogniser = phone.recogniser()
            for seed, name in ((1, "Ada"), (2, "Bo")):
                crops = noise_crops(seed)
                template = recogniser.template(recogniser.embed(crops))
                phone.gallery.enroll(name, crops, template, now_unix_s=0, consent=True)
        yield shop


@pytest.fixture
def home(shop: Shop, tmp_path: Path) -> Path:
    """A copy of the phone, to be offered the release that it has."""
    copy = tmp_path / "phone"
    shutil.copytree(shop.home, copy)
    shop.offer(PLAIN)
    return copy


def in_use(phone: Device) -> tuple[str, float]:
    """Return form and threshold that a phone verifies with, after a look at everybody's templates."""
    recogniser = phone.recogniser()
    assert phone.gallery.form_id == recogniser.form_id
    references = phone.gallery.references(recogniser.form_id)
    for name, seed in (("Ada", 1), ("Bo", 2)):
        (own,) = references.of(name)
        expected = recogniser.template(recogniser.embed(noise_crops(seed))).embedding
        np.testing.assert_allclose(own, expected, atol=1e-5)
        np.testing.assert_allclose(phone.gallery.scores(name, recogniser.form_id, expected), 1.0, atol=1e-5)
    return recogniser.form_id, phone.operating_point(recogniser.model, recogniser.variant).value


def test_a_signed_release_says_whom_its_model_was_not_measured_on(shop: Shop, home: Path) -> None:
    """The same model, described anew: rates by group, one of them of the model that this one was made of."""
    with opened(home) as phone:
        before = phone.status()
        assert (before.groups_measured, before.groups_above_rate) == ((), ())
        assert "children up to 12 years" in before.never_measured
        rates = [
            GroupRate("age", group, verdict, 1e-3, 0.3, 30, 9, 400, "faces", model, "2026-01-01")
            for group, verdict, model in (
                ("0-12", "exceeds", MODEL),
                ("20-39", "measured", MODEL),
                ("60+", "too_small", MODEL),
                ("13-19", "measured", "f" * 64),
            )
        ]
        shop.offer(Offer.of(6, [(FIRST, GRAPHS["first"])], groups=tuple(rates)))
        phone.update()
        after = phone.status()
        assert (after.groups_measured, after.groups_above_rate) == (("age 0-12", "age 20-39"), ("age 0-12",))
        assert set(before.never_measured) - set(after.never_measured) == {"children up to 12 years"}
        assert in_use(phone) == (MODEL, 0.3)


def test_float32_is_the_default_and_fetches_no_variant(home: Path) -> None:
    with opened(home) as phone:
        assert not phone.update().changed
        assert in_use(phone) == (MODEL, 0.3)
        assert not phone.home.variants.exists()


def test_a_switch_makes_all_templates_again_under_the_variants_own_threshold(home: Path) -> None:
    told: list[Event] = []
    with opened(home, "int8", told) as phone:
        before = phone.gallery.references(MODEL).embeddings
        assert in_use(phone) == (MODEL, 0.3)  # until the phone changes over
        done = phone.update()
        assert (done.changed, done.num_templates, done.tier) == (True, 2, "int8")
        assert in_use(phone) == (FIRST.form_id, 0.9)
        assert not np.allclose(phone.gallery.references(FIRST.form_id).embeddings, before)
        assert "as int8; 2 templates were made again" in told[-1].text
        with pytest.raises(ModelMismatchError, match="variant"):
            phone.gallery.references(MODEL)
        with pytest.raises(ModelMismatchError):
            phone.gallery.scores("Ada", MODEL, before[0])
        assert phone.gallery.model_id == MODEL
        assert phone.status().tier == "int8"
        with pytest.raises(ConfigError, match="made on the model in float32"):
            phone.personalise()
    with opened(home, "int8") as phone:
        assert in_use(phone) == (FIRST.form_id, 0.9)
        assert not phone.update().changed
    with opened(home) as phone:
        assert phone.update().changed
        assert in_use(phone) == (MODEL, 0.3)
        assert list(phone.home.variants.iterdir()) == []


def test_a_threshold_by_hand_goes_on_deciding_with_a_word(shop: Shop, home: Path) -> None:
    (home / "device.toml").write_text("[verification]\nthreshold = 0.42\n")

    def warned(tier: str) -> list[str]:
        told: list[Event] = []
        with opened(home, tier, told) as phone:
            phone.update()
            assert in_use(phone)[1] == 0.42
            assert phone.status().threshold_by_hand == 0.42
        return [event.text for event in told if event.kind == "threshold_by_hand"]

    assert warned("float32") == []  # no change
    (text,) = warned("int8")
    assert "0.420 (verification.threshold): it is right for int8 only if it was measured on" in text
    assert warned("int8") == []
    shop.offer(Offer.of(8, [], seed=2))
    assert len(warned("float32")) == 1  # another model is another form
    (home / "device.toml").unlink()
    with opened(home) as phone:
        assert phone.status().threshold_by_hand is None


def test_a_program_that_runs_on_takes_up_a_form_that_the_owner_chose_meanwhile(home: Path) -> None:
    with opened(home, None) as running, opened(home, "float32") as fixed:
        running.update()
        for tier, form in (("int8", FIRST.form_id), ("float32", MODEL), ("int8", FIRST.form_id)):
            keep_setting(home / "device.toml", "inference.tier", tier)
            with opened(home, None) as anew:
                assert anew.update().tier == tier
            assert not running.update().changed
            assert running.update().tier == tier
            assert in_use(running)[0] == form
        assert fixed.update().tier == "float32"  # an option comes before the file, also before a later one
        (home / "device.toml").write_text("[inference")
        with pytest.raises(ConfigError, match="not valid TOML"):
            running.update()
        assert in_use(running)[0] == MODEL


def test_variants_that_were_fetched_to_be_measured_go_and_those_of_a_switch_stay(home: Path) -> None:
    folder = home / "models" / "variants"

    def look(device: Device) -> Looked:
        variants = device.offered_variants()
        form = FormFigures("float32", 1.0, 1.0, 1.0)
        return Looked((), EngineFigures("torch"), (form,), form, InferenceConfig(), "", variants)

    with opened(home) as bench:
        look(bench).forget_others(bench)
        assert list(folder.iterdir()) == []
    with opened(home) as bench, opened(home, "int8") as other:
        looked = look(bench)  # the other one finds what this one fetched
        other.variants.keep(FIRST)
        looked.forget_others(bench)
        assert other.variants.has(FIRST.form_id)
        other.update()
        again = look(bench)  # and here it is the other way round
        again.forget_others(bench)
        assert in_use(other)[0] == FIRST.form_id
    with opened(home) as back:
        back.update()
        other_fetches = VariantStore(folder)
        with back.connect() as client:
            other_fetches.fetch(client, FIRST)
        look(back).forget_others(back)
        assert (folder / FIRST.sha256).is_file()
    (folder / FIRST.sha256).unlink()
    with opened(home, None) as bench:
        looked = look(bench)
        keep_setting(
            home / "device.toml", "inference.tier", "int8"
        )  # the owner's choice, which a switch is about to take
        looked.forget_others(bench)
        assert (folder / FIRST.sha256).is_file()


def test_a_release_with_the_variant_anew_or_without_it(shop: Shop, home: Path) -> None:
    told: list[Event] = []
    with opened(home, "int8", told) as phone:
        phone.update()
        shop.offer(STRICTER)
        assert not phone.update().changed
        assert in_use(phone) == (FIRST.form_id, 0.95)
    fresh = home.parent / "fresh"
    shutil.copytree(shop.home, fresh)
    with opened(fresh, "int8", told) as phone:
        shop.offer(ANEW)
        assert phone.update().changed
        assert in_use(phone)[0].endswith(variant(MODEL, GRAPHS["anew"]).sha256)
        shop.offer(Offer.of(7, []))
        assert phone.update().tier == "float32"
        assert in_use(phone) == (MODEL, 0.3)
        assert any(event.kind == "no_variant" for event in told)


@pytest.mark.parametrize(
    ("offer", "message"),
    [
        (Offer.of(6, [(FIRST, GRAPHS["first"])], raw=VariantList((variant("b" * 64, GRAPHS["first"]),)).to_json()),
         "of another model"),
        (Offer.of(6, [(FIRST, GRAPHS["anew"])]), "not the signed file"),
        (Offer.of(6, [(FIRST, GRAPHS["first"])], raw=b'{"variants":[]}'), "cannot be read"),
        (Offer.of(6, [(variant(MODEL, b"no graph"), b"no graph")]), "cannot load variant int8"),
    ],
)  # fmt: skip
def test_a_variant_that_is_wrong_stops_the_switch_and_nothing_else(
    shop: Shop, home: Path, offer: Offer, message: str
) -> None:
    shop.offer(offer)
    with opened(home, "int8") as phone:
        with pytest.raises(CorruptDataError, match=message):
            phone.update()
        assert in_use(phone) == (MODEL, 0.3)
    with opened(home) as phone:
        phone.update()  # who uses float32 is not concerned
        assert in_use(phone) == (MODEL, 0.3)


NEWER = {
    "newer list": b'{"version":2,"variants":[{"tier":7}]}',
    "field of a later version": VariantList((FIRST,)).to_json().replace(b'"tier":', b'"rotation":1,"tier":'),
    "for newer programs": VariantList((replace(FIRST, min_sdk="99.0.0"),)).to_json(),
}


@pytest.mark.parametrize("listed", NEWER.values(), ids=NEWER)
def test_variants_for_newer_programs_mean_float32_with_a_word(
    shop: Shop, home: Path, listed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching, "measure_engines", lambda *_, **__: (EngineFigures("torch", 1.0, 1.0, 1.0),))
    told: list[Event] = []
    with opened(home, "int8", told) as phone:
        assert phone.update().tier == "int8"
        shop.offer(Offer.of(6, [(FIRST, GRAPHS["first"])], raw=listed, seed=2))
        assert phone.update().tier == "float32"
        assert phone.gallery.form_id == Offer.of(6, [], seed=2).model
        assert any(event.kind == "no_variant" and "used in float32" in event.text for event in told)
        found = benching.looked_at(phone)
        assert ([each.tier for each in found.forms], found.chosen.tier) == (["float32"], "float32")
        assert found.unseen


def test_a_file_that_came_or_became_damaged_is_an_error_and_is_fetched_again(shop: Shop, home: Path) -> None:
    with opened(home, "int8") as phone:
        shop.offer(PLAIN, **{FIRST.sha256: GRAPHS["anew"]})
        with pytest.raises((CorruptDataError, UnreachableError)):
            phone.update()
        assert in_use(phone) == (MODEL, 0.3)
        shop.offer(PLAIN)
        phone.update()
    file = home / "models" / "variants" / FIRST.sha256
    file.write_bytes(GRAPHS["anew"])
    with opened(home, "int8") as phone:
        with pytest.raises(CorruptDataError, match="damaged or was changed"):
            phone.recogniser()
        phone.update()
        assert in_use(phone) == (FIRST.form_id, 0.9)
    described = file.with_name(f"{file.name}.json")
    described.write_bytes(described.read_bytes().replace(MODEL.encode(), b"b" * 64))
    with opened(home, "int8") as phone, pytest.raises(CorruptDataError, match="of another model"):
        phone.recogniser()


def test_the_session_keeps_to_one_length() -> None:
    loaded = load_variant(FIRST, GRAPHS["first"])
    assert loaded.embed(noise_crops(1, count=6)).shape == (6, 16)
    assert loaded.embed(noise_crops(1)[:0]).shape == (0, 16)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["fetch", "accept", "keep", "reembed", "keep_only"])
def test_killed_at_any_step_of_a_switch_one_form_serves(shop: Shop, home: Path, step: str, when: str) -> None:
    died = subprocess.run([sys.executable, "-c", DYING, str(home), "int8", when, step], check=False, timeout=240)
    assert died.returncode == -signal.SIGKILL
    with opened(home, "int8") as phone:
        assert in_use(phone) in ((MODEL, 0.3), (FIRST.form_id, 0.9))
        phone.update()
        assert in_use(phone) == (FIRST.form_id, 0.9)
