"""Data sets: what is imported is what is read, whatever is changed is noticed, and whoever reads shares it."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    EmptyFolderError,
    NotFoundError,
    UnreachableError,
    VersionError,
)
from mien.specs import FaceInputSpec
from simulation.engines.population import num_images
from simulation.faces.importing import ImportSource, import_faces
from simulation.faces.partitions import Holding, PartitionSpec, build
from simulation.faces.sources import ClientFaces, FacesSource, Reader, counts_of, data_sha256, images_of, is_there
from simulation.faces.store import CROPS, FAILURES, FILES, INDEX, MANIFEST, NAMES, CropStore, StoreCrops, taken
from simulation.faces.writer import Imported, StoreTerms, StoreWriter
from tests.device_sdk.made_up_people import noise_crops
from tests.helpers import ROOT
from tests.simulation.faces.archives import PEOPLE, archive, crops_of, folder_of_people

TERMS = StoreTerms("CC0", "made up", is_synthetic=True)
ORDER = ["Ada", "Bo", "Cid", "Äpfel"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImportSource:
    """Return a folder of people."""
    return ImportSource.of(folder_of_people(tmp_path_factory.mktemp("people") / "faces"), aligned=True)


@pytest.fixture
def made(source: ImportSource, tmp_path: Path) -> Path:
    """Return a data set of them."""
    import_faces(source, tmp_path / "set", TERMS)
    return tmp_path / "set"


def test_everybody_is_there_in_order(made: Path) -> None:
    store = CropStore(made)
    assert list(store.names()) == ORDER
    assert store.manifest.images == sum(PEOPLE.values()) == len(store.labels)
    for number, name in enumerate(ORDER):
        assert store.number(name) == number
        np.testing.assert_array_equal(store.crops_of(number), crops_of(name))
        assert (store.labels == number).sum() == PEOPLE[name]
    assert store.file(2) == "0.png"  # Bo's first, after two of Ada's
    assert store.file(5) == "0.png"
    store.verify()
    assert "0." not in repr(store)


def test_what_gave_no_face_is_listed_by_name(made: Path) -> None:
    found = {(failure.name, failure.code) for failure in CropStore(made).failures()}
    assert found == {("Bo/broken.png", "image"), ("Nobody/x.png", "image")}


def test_crops_are_views_that_nobody_can_write_to(made: Path) -> None:
    store = CropStore(made)
    crops = store.crops_of(1)
    assert np.shares_memory(crops, store.crops)
    with pytest.raises(ValueError, match="read-only"):
        crops[0, 0, 0, 0] = 1
    assert np.shares_memory(taken(crops, (1, 2)), crops)
    np.testing.assert_array_equal(taken(crops, (2, 0)), crops[[2, 0]])


def test_files_are_their_owners_alone(made: Path) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == {0o600}
    assert {path.name for path in made.iterdir()} == {CROPS, FAILURES, FILES, INDEX, MANIFEST, NAMES}


def test_an_archive_gives_the_same_crops(tmp_path: Path, made: Path) -> None:
    rec = archive(tmp_path / "ms")
    import_faces(ImportSource.of(rec.parent, aligned=False), tmp_path / "rec", TERMS)
    from_rec, store = CropStore(tmp_path / "rec"), CropStore(made)
    assert [name.rpartition("_")[0] for name in from_rec.names()] == ["ms"] * 4
    for number, name in enumerate(PEOPLE):
        np.testing.assert_array_equal(from_rec.crops_of(number), store.crops_of(store.number(name)))


def test_several_processes_give_the_same_data_set(source: ImportSource, made: Path, tmp_path: Path) -> None:
    import_faces(source, tmp_path / "jobs", TERMS, jobs=2)
    assert CropStore(tmp_path / "jobs").manifest == CropStore(made).manifest


def test_terms_do_not_change_the_content_and_faces_do(source: ImportSource, made: Path, tmp_path: Path) -> None:
    import_faces(source, tmp_path / "other", StoreTerms("research only", "elsewhere", is_synthetic=True))
    assert CropStore(tmp_path / "other").manifest.content_sha256 == CropStore(made).manifest.content_sha256
    with StoreWriter(tmp_path / "third", TERMS, height=112, width=112, plan={}) as writer:
        for name in ORDER:
            writer.add(Imported(name, 255 - crops_of(name), ("x",) * PEOPLE[name]))
        assert writer.finish("").content_sha256 != CropStore(made).manifest.content_sha256


def test_an_unknown_identity(made: Path) -> None:
    store = CropStore(made)
    for name in ("", "Aaa", "Adam", "zzz"):
        with pytest.raises(NotFoundError):
            store.number(name)
    crops = StoreCrops(store)
    assert "Adam" not in crops
    assert (len(crops), list(crops), crops.num_images("Cid")) == (4, ORDER, 4)
    np.testing.assert_array_equal(crops["Cid"], crops_of("Cid"))


def test_a_population_of_a_store(made: Path) -> None:
    population = CropStore(made).population()
    assert len(population) == 4
    np.testing.assert_array_equal(population["phone-2"], crops_of("Cid"))
    assert population.num_images("phone-1") == 3


# What is changed


def changed(name: str, at: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 1
        (folder / name).write_bytes(data)

    return change


@pytest.mark.parametrize("name", [CROPS, NAMES, FILES, FAILURES])
def test_a_changed_byte_is_found(made: Path, name: str) -> None:
    changed(name, 0)(made)
    store = CropStore(made)
    with pytest.raises(CorruptDataError, match=name):
        store.verify()


@pytest.mark.parametrize("name", [CROPS, INDEX, NAMES, FILES, FAILURES])
@pytest.mark.parametrize("by", [-1, 1])
def test_another_length_is_refused_at_once(made: Path, name: str, by: int) -> None:
    path = made / name
    os.truncate(path, path.stat().st_size + by)
    with pytest.raises(CorruptDataError, match=name):
        CropStore(made)


@pytest.mark.parametrize("name", [CROPS, INDEX, NAMES, FILES, FAILURES])
def test_a_missing_file(made: Path, name: str) -> None:
    (made / name).unlink()
    with pytest.raises(CorruptDataError, match="missing"):
        CropStore(made)


@pytest.mark.parametrize("at", [0, 8, 15, 32, 40, 47])
def test_an_index_that_points_elsewhere_is_refused_at_once(made: Path, at: int) -> None:
    data = bytearray((made / INDEX).read_bytes())
    data[at] ^= 0x80
    (made / INDEX).write_bytes(data)
    with pytest.raises(CorruptDataError, match=INDEX):
        CropStore(made)


def test_a_file_that_is_cut_off_while_it_is_read(made: Path) -> None:
    store = CropStore(made)
    os.truncate(made / CROPS, 100)
    with pytest.raises(UnreachableError, match="changed while it was in use"):
        store.crops_of(3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("images", 0), ("images", 2**40), ("height", 10**9), ("identities", 11), ("crops", []), ("crops", ["x"]),
        ("failures", -1), ("files", {}), ("images", "many"), ("unknown", 1), ("files", {INDEX: 1}),
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be(made: Path, field: str, value: object) -> None:
    data = json.loads((made / MANIFEST).read_text())
    (made / MANIFEST).write_text(json.dumps({**data, field: value}))
    with pytest.raises(CorruptDataError):
        CropStore(made)


def test_a_manifest_of_a_later_format_or_none(made: Path, tmp_path: Path) -> None:
    data = json.loads((made / MANIFEST).read_text())
    (made / MANIFEST).write_text(json.dumps({**data, "format": 2}))
    with pytest.raises(VersionError):
        CropStore(made)
    with pytest.raises(NotFoundError, match="mien-sim data import"):
        CropStore(tmp_path)


# Sharing


def test_another_process_reads_the_same_file(made: Path) -> None:
    store = CropStore(made)
    code = (
        "import sys, pickle, numpy as np; s = pickle.loads(bytes.fromhex(sys.argv[1])); "
        "print(int(s.crops_of(2).astype(np.int64).sum()))"
    )
    arguments = [sys.executable, "-c", code, pickle.dumps(store).hex()]
    sums = [
        subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    expected = int(store.crops_of(2).astype(np.int64).sum())
    assert [int(process.communicate(timeout=240)[0]) for process in sums] == [expected] * 2


# Experiments


def test_an_experiment_takes_a_store_as_a_source(made: Path, source: ImportSource) -> None:
    stored, folder = FacesSource("store", "set"), FacesSource("folder", str(source.path))
    root = made.parent
    assert is_there(stored, root)
    assert counts_of(stored, root) == PEOPLE
    held = (Holding("Ada", (0, 1)), Holding("Cid", (1, 3)))
    readers = [Reader(images_of(each, root), FaceInputSpec()) for each in (stored, folder)]
    (crops, labels), (same, same_labels) = (reader.read(held) for reader in readers)
    np.testing.assert_array_equal(crops, same)
    assert labels.tolist() == same_labels.tolist() == [0, 0, 1, 1]
    assert data_sha256([stored], root) != data_sha256([stored, stored], root)


def test_a_partition_over_the_index_reads_no_crop(made: Path) -> None:
    source, root = FacesSource("store", "set"), made.parent
    counts = counts_of(source, root)
    partition = build(PartitionSpec("one_identity", 3, test=1), counts)
    store = CropStore(made)
    images = images_of(source, root)
    clients = ClientFaces(Reader(images, FaceInputSpec()), partition.clients, 112 * 112 * 3)
    assert len(clients.crops) == 3
    assert sum(num_images(clients.crops, client) for client in clients.crops) == partition.num_images
    for client, (holding,) in partition.clients.items():
        np.testing.assert_array_equal(clients.crops[client], store.crops_of(store.number(holding.identity)))
        assert not clients.crops[client].flags.owndata
    narrow = Reader(images, FaceInputSpec(width=96)).read((Holding("Ada", (0,)),))[0]
    np.testing.assert_array_equal(narrow, crops_of("Ada")[:1, :, 8:104])


# Importing


def test_a_second_import_into_a_folder_is_refused(made: Path, source: ImportSource, tmp_path: Path) -> None:
    with pytest.raises(AlreadyExistsError, match="holds a data set already"):
        import_faces(source, made, TERMS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(AlreadyExistsError, match="not empty"):
        import_faces(source, tmp_path / "full", TERMS)


def test_real_faces_stay_out_of_a_work_tree(source: ImportSource, tmp_path: Path) -> None:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    real = StoreTerms("research only", "somewhere")
    with pytest.raises(ConfigError, match="git work tree repository"):
        import_faces(source, tmp_path / "repository" / "data" / "set", real)
    import_faces(source, tmp_path / "repository" / "set", TERMS)
    import_faces(source, tmp_path / "outside", real)


def test_a_source_without_a_face(tmp_path: Path) -> None:
    (tmp_path / "faces" / "x").mkdir(parents=True)
    (tmp_path / "faces" / "x" / "1.png").write_bytes(b"none")
    with pytest.raises(EmptyFolderError, match="no image gives a face"):
        import_faces(ImportSource.of(tmp_path / "faces", aligned=True), tmp_path / "set", TERMS)
    with pytest.raises(NotFoundError):
        ImportSource.of(tmp_path / "nowhere", aligned=True)
    with pytest.raises(ConfigError, match="licence"):
        StoreTerms(" ", "x")


def test_a_writer_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "set", TERMS, height=112, width=112, plan={}) as writer:
        writer.add(Imported("a", noise_crops(1, 2), ("1", "2")))
        for wrong in (
            Imported("a", noise_crops(1, 1), ("1",)),
            Imported("", noise_crops(1, 1), ("1",)),
            Imported("b", noise_crops(1, 1), ()),
            Imported("b", noise_crops(1, 1)[:, :96], ("1",)),
        ):
            with pytest.raises(ConfigError):
                writer.add(wrong)


def test_names_from_outside_are_never_paths(tmp_path: Path) -> None:
    names = ("../../outside", "/etc/x", "a\nb", "..")
    with StoreWriter(tmp_path / "here" / "set", TERMS, height=112, width=112, plan={}) as writer:
        for number, name in enumerate(names):
            writer.add(Imported(name, noise_crops(number, 1), ("../1.png",)))
        writer.finish("")
    store = CropStore(tmp_path / "here" / "set")
    assert sorted(store.names()) == sorted(names)
    store.verify()
    assert {path.name for path in tmp_path.iterdir()} == {"here"}
