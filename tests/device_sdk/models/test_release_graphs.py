"""Graphs that come with a signed release: which are fetched, when they change over, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from coordinator.release.signing import sign_folder
from device_sdk.device import Device
from device_sdk.models.graphs import fetch_graphs
from device_sdk.models.models import Model
from device_sdk.models.releases import ReleaseGuard, verify_folder
from device_sdk.runtimes import load_runtime
from device_sdk.runtimes.manifest import GraphFolder
from device_sdk.server.offers import Manifest, Progress
from mien.errors import ConfigError, CorruptDataError
from mien.layout import model_id
from mien.methods.base import Embeddings, TrainingJob
from mien.models import bundles
from mien.models.bundles import BundleManifest
from mien.protocol.canonical import model_to_json
from mien.protocol.rounds import BlobId
from tests.device_sdk.models.test_releases import KEY, NAME, offered
from tests.device_sdk.runtimes.test_onnx_runtime import HINGE, LOCAL
from tests.graphs import FOLDER
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
CROPS = made_up_crops(3, seed=1)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A signed model with a few graphs for both engines."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "model.json").write_bytes(model_to_json(TINY.spec, TINY.layout))
    (folder / "theta.f32").write_bytes(np.ascontiguousarray(TINY.theta, "<f4").tobytes())
    source = GraphFolder.open(FOLDER, TINY.spec, TINY.layout)
    wanted = ("embed", "trunk_mix", "tail_mix", "train_positive_hinge_tail", "loss_positive_hinge")
    graphs = [graph for graph in source.manifest.graphs if graph.file.rsplit(".", 1)[0] in wanted]
    for graph in graphs:
        (folder / graph.file).write_bytes((source.folder / graph.file).read_bytes())
    (folder / "graphs.json").write_bytes(dataclasses.replace(source.manifest, graphs=tuple(graphs)).to_json())
    sign_folder(folder, KEY, sequence=1)
    return folder


class Shelf:
    """Hands out the files of a folder by hash, and says which it handed out."""

    def __init__(self, folder: Path) -> None:
        self.files = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in folder.iterdir()}
        self.taken: list[str] = []

    def download(self, blob: BlobId, target: Path, *, what: str, progress: Progress | None = None) -> None:
        data = self.files[blob.sha256].read_bytes()
        if hashlib.sha256(data).hexdigest() != blob.sha256:
            raise CorruptDataError(f"{what} came damaged twice; try later, or tell the operator")
        self.taken.append(self.files[blob.sha256].name)
        target.write_bytes(data)


def signed(folder: Path) -> BundleManifest:
    return verify_folder(folder, bundles.name_of(KEY))


def fetched(shelf: Shelf, folder: Path, root: Path, runtime: str) -> bool:
    return fetch_graphs(shelf, signed(folder), root, runtime)  # type: ignore[arg-type]


@pytest.mark.parametrize(("runtime", "suffix"), [("onnxruntime", ".onnx"), ("executorch", ".pte")])
def test_a_device_takes_the_graphs_of_its_engine_alone(bundle: Path, tmp_path: Path, runtime: str, suffix: str) -> None:
    shelf, root = Shelf(bundle), tmp_path / "graphs"
    assert fetched(shelf, bundle, root, runtime)
    assert {Path(name).suffix for name in shelf.taken} == {suffix, ".json"}
    assert len(shelf.taken) == 1 + 5
    engine = load_runtime(TINY.spec, TINY.layout, choice=runtime, graphs=root)  # type: ignore[arg-type]
    np.testing.assert_allclose(engine.embed(TINY.theta, CROPS), TINY.runtime().embed(TINY.theta, CROPS), atol=1e-6)
    assert not fetched(shelf, bundle, root, runtime)
    assert len(shelf.taken) == 1 + 5


def test_torch_takes_none_and_a_release_may_have_none(bundle: Path, tmp_path: Path) -> None:
    shelf = Shelf(bundle)
    assert not fetched(shelf, bundle, tmp_path / "graphs", "torch")
    plain = ReleaseGuard(NAME, tmp_path / "release.json").check(offered("a", 1)).signed
    assert plain is not None
    assert not fetch_graphs(shelf, plain, tmp_path / "graphs", "onnxruntime")  # type: ignore[arg-type]
    assert not fetch_graphs(shelf, None, tmp_path / "graphs", "onnxruntime")  # type: ignore[arg-type]
    assert not (tmp_path / "graphs").exists()


def test_other_graphs_replace_what_was_there(bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "graphs"
    fetched(Shelf(bundle), bundle, root, "onnxruntime")
    folder = root / TINY.layout.sha256
    before = {path.name for path in folder.iterdir()}
    listing = json.loads((bundle / "graphs.json").read_bytes())
    listing["graphs"] = [graph for graph in listing["graphs"] if "loss" not in graph["file"]]
    (bundle / "graphs.json").write_text(json.dumps(listing))
    for path in bundle.glob("loss_*"):
        path.unlink()
    sign_folder(bundle, KEY, sequence=2)
    assert fetched(Shelf(bundle), bundle, root, "onnxruntime")
    after = {path.name for path in folder.iterdir()}
    assert len(before) == 7  # five graphs, their list, and the list under its hash
    assert len(after) == 6
    assert len(after & before) == 5


def test_a_transfer_that_stops_leaves_the_graphs_that_were_there(bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "graphs"
    fetched(Shelf(bundle), bundle, root, "onnxruntime")
    listing = json.loads((bundle / "graphs.json").read_bytes())
    embed = bundle / "embed.onnx"
    embed.write_bytes(embed.read_bytes() + b"\x00")
    entry = next(graph for graph in listing["graphs"] if graph["file"] == "embed.onnx")
    entry["sha256"], entry["size_bytes"] = hashlib.sha256(embed.read_bytes()).hexdigest(), embed.stat().st_size
    (bundle / "graphs.json").write_text(json.dumps(listing))
    sign_folder(bundle, KEY, sequence=2)
    shelf, newer = Shelf(bundle), signed(bundle)
    embed.write_bytes(b"damaged")
    with pytest.raises(CorruptDataError, match="damaged"):
        fetch_graphs(shelf, newer, root, "onnxruntime")  # type: ignore[arg-type]
    engine = load_runtime(TINY.spec, TINY.layout, choice="onnxruntime", graphs=root)
    np.testing.assert_allclose(engine.embed(TINY.theta, CROPS), TINY.runtime().embed(TINY.theta, CROPS), atol=1e-6)


@pytest.mark.parametrize("runtime", ["onnxruntime", "executorch"])
def test_graphs_that_another_process_of_the_phone_took_over_are_used_from_then_on(
    bundle: Path, tmp_path: Path, runtime: str
) -> None:
    model = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
    part, expected = TINY.part(), TINY.runtime().embed(TINY.theta, CROPS)
    with Device.open(tmp_path / "phone", options={"keystore": "file", "runtime": runtime}) as phone:
        fetched(Shelf(bundle), bundle, phone.home.graphs, runtime)
        assert phone._runtime(model) is phone._runtime(model)  # loads a graph when it is needed: none until now
        exported_anew(bundle)
        assert fetched(Shelf(bundle), bundle, phone.home.graphs, runtime)
        np.testing.assert_allclose(phone._recogniser(model).embed_fitted(CROPS), unit(expected), atol=1e-6)
        phone._runtime(model).train(TrainingJob(TINY.theta, part, CROPS, HINGE, LOCAL, 1))


def exported_anew(bundle: Path) -> None:
    """Sign the same model with graphs that say the same in other bytes."""
    listing = json.loads((bundle / "graphs.json").read_bytes())
    for entry in listing["graphs"]:
        path = bundle / entry["file"]
        if path.suffix == ".onnx":
            graph = onnx.load(path)
            graph.doc_string = "exported again"
            onnx.save(graph, path)
        else:
            path.write_bytes(path.read_bytes() + bytes(16))
        data = path.read_bytes()
        entry["sha256"], entry["size_bytes"] = hashlib.sha256(data).hexdigest(), len(data)
    (bundle / "graphs.json").write_text(json.dumps(listing))
    sign_folder(bundle, KEY, sequence=2)


def unit(embeddings: Embeddings) -> Embeddings:
    lengths: Embeddings = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return (embeddings / lengths).astype(np.float32)


def changed_files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.iterdir() if path.name != "manifest.sig")


def test_tampering_with_any_file_of_a_bundle_is_noticed(bundle: Path) -> None:
    for path in changed_files(bundle):
        data = path.read_bytes()
        for tampered in (data[:-1] + bytes([data[-1] ^ 1]), data + b"\n", data[:-1]):
            path.write_bytes(tampered)
            with pytest.raises(CorruptDataError):
                signed(bundle)
        path.write_bytes(data)
        signed(bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout_sha256": "0" * 64}, "for another model or other crops"),
        ({"input": {}}, "for another model or other crops"),
        ({"graphs": "none"}, "cannot be read"),
        ({"graphs": [{"file": "other.onnx", "sha256": "0" * 64, "size_bytes": 1}]}, "names one that is not signed"),
        ({"graphs": [3]}, "names one that is not signed"),
    ],
)
def test_a_list_that_does_not_fit_is_not_signed(bundle: Path, change: dict[str, object], message: str) -> None:
    listing = json.loads((bundle / "graphs.json").read_bytes())
    (bundle / "graphs.json").write_text(json.dumps({**listing, **change}))
    with pytest.raises(CorruptDataError, match=message):
        sign_folder(bundle, KEY, sequence=2)


def test_graphs_without_their_list_are_not_signed(bundle: Path) -> None:
    (bundle / "graphs.json").unlink()
    with pytest.raises(ConfigError, match=r"lists graphs\.json"):
        sign_folder(bundle, KEY, sequence=2)


def test_a_release_for_older_programs_than_the_last_is_refused(tmp_path: Path) -> None:
    guard = ReleaseGuard(NAME, tmp_path / "release.json")
    first = for_version(offered("a", 5), "0.0.9")
    guard.accept(guard.check(first))
    guard.accept(guard.check(for_version(offered("b", 6), "0.1.0")))
    with pytest.raises(CorruptDataError, match=r"for mien 0\.0\.9 on, the one before it was for 0\.1\.0"):
        guard.check(for_version(offered("d", 7), "0.0.9"))
    guard.accept(guard.check(for_version(offered("d", 8), "0.1")))


def for_version(manifest: Manifest, version: str) -> Manifest:
    data = manifest.unverified_bundle_json.replace(b'"min_sdk":"0.1.0"', b'"min_sdk":"' + version.encode() + b'"')
    return dataclasses.replace(manifest, unverified_bundle_json=data, bundle_signature=bundles.sign(KEY, data))
