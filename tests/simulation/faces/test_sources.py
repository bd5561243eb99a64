"""Faces of an experiment: the same crops from a folder and from an archive, exclusions, failures that are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from mien.errors import ConfigError, EmptyFolderError, NotFoundError
from mien.specs import FaceInputSpec
from simulation.faces.partitions import Holding
from simulation.faces.sources import ClientFaces, FacesSource, Reader, counts_of, data_sha256, images_of, is_there
from simulation.faces.writer import Imported, StoreTerms, StoreWriter
from simulation.runs.spec import make_plan, parse
from simulation.synthetic import committed_faces
from tests.simulation.faces.test_recordio import image_record, range_record, write

Kind = Literal["folder", "rec", "store"]
Read = Callable[[FacesSource, Path], object]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people of three images, as a folder and as an archive; one image of the second is no image."""
    root = tmp_path_factory.mktemp("faces")
    records, key, ranges = dict[int, bytes](), 1, []
    for number, files in enumerate(list(committed_faces("public").values())[:2]):
        (root / "folder" / f"p_{number}").mkdir(parents=True)
        contents = [path.read_bytes() for path in files[:3]]
        if number == 1:
            contents[2] = b"no image"
        for i, content in enumerate(contents):
            (root / "folder" / f"p_{number}" / f"{i}.jpg").write_bytes(content)
            records[key + i] = image_record(float(number), content)
        ranges.append((key, key + 3))
        key += 3
    people = {key + i: range_record(*map(float, span)) for i, span in enumerate(ranges)}
    (root / "archive").mkdir()
    write(root / "archive", {0: range_record(float(key), float(key + 2)), **records, **people})
    (root / "excluded.txt").write_text("p_1\nsomebody_else\n")
    return root


def test_a_folder_and_an_archive_give_the_same_crops(root: Path) -> None:
    sources = FacesSource(path="folder"), FacesSource("rec", "archive/train.rec", domain="p")
    crops = []
    for source in sources:
        images = images_of(source, root)
        assert sorted(counts_of(source, root).values()) == [3, 3]
        reader = Reader(images, FaceInputSpec())
        read, labels = reader.read(tuple(Holding(name, (0, 1, 2)) for name in sorted(images)))
        assert labels.tolist() == [0, 0, 0, 1, 1]
        assert sum(reader.failures.values()) == 1
        crops.append(read)
    np.testing.assert_array_equal(crops[0], crops[1])
    assert sorted(images_of(sources[1], root)) == ["p_00000007", "p_00000008"]


def test_people_can_be_left_out(root: Path) -> None:
    assert list(counts_of(FacesSource(path="folder", exclude="excluded.txt"), root)) == ["p_0"]
    with pytest.raises(NotFoundError, match="lists identities to leave out"):
        counts_of(FacesSource(path="folder", exclude="none.txt"), root)
    assert not is_there(FacesSource(path="nowhere"), root)


@pytest.mark.parametrize("source", [FacesSource(path="folder"), FacesSource("rec", "archive/train.rec", domain="p")])
def test_people_of_one_data_set_may_be_two_sources(source: FacesSource, root: Path) -> None:
    first, second = (replace(source, people=f"*{name[-1]}") for name in images_of(source, root))
    assert {**counts_of(first, root), **counts_of(second, root)} == counts_of(source, root)
    assert len(counts_of(first, root)) == len(counts_of(second, root)) == 1
    with pytest.raises(EmptyFolderError, match="name of none of the 2 people"):
        counts_of(replace(source, people="nobody"), root)


@pytest.mark.parametrize("kind", ["folder", "rec", "store"])
@pytest.mark.parametrize("read", [images_of, lambda source, root: data_sha256([source], root)])
def test_what_is_missing_is_said_with_the_folder_that_was_looked_in(kind: Kind, read: Read, root: Path) -> None:
    with pytest.raises(NotFoundError, match="absolute path") as caught:
        read(FacesSource(kind, "nowhere/train.rec"), root)
    assert f"there is no nowhere/train.rec in {root}: " in caught.value.message
    for place in ("--faces", "MIEN_DATA", "here"):
        assert place in caught.value.message


@pytest.mark.parametrize("read", [counts_of, lambda source, root: data_sha256((source,), root)])
def test_real_people_are_not_called_synthetic(read: Read, tmp_path: Path) -> None:
    """What a data set says of itself holds: else a report would map real people's embeddings."""
    for is_synthetic in (False, True):
        terms = StoreTerms("CC0", "made up", is_synthetic=is_synthetic)
        with StoreWriter(tmp_path / str(is_synthetic), terms, height=8, width=8, plan={}) as writer:
            writer.add(Imported("p", np.zeros((2, 8, 8, 3), np.uint8), ("a", "b")))
            writer.finish("x")
    for name, called in (("False", False), ("True", False), ("True", True)):
        read(FacesSource("store", name, synthetic=called), tmp_path)
    with pytest.raises(ConfigError, match="imported as one of real people"):
        read(FacesSource("store", "False", synthetic=True), tmp_path)


def test_absolute_paths_and_archives_without_an_index(root: Path, tmp_path: Path) -> None:
    assert len(counts_of(FacesSource(path=str(root / "folder")), tmp_path)) == 2
    (tmp_path / "train.rec").write_bytes(b"")
    with pytest.raises(NotFoundError, match=r"with its \.idx beside it"):
        data_sha256([FacesSource("rec", "train.rec")], tmp_path)


def test_clients_are_decoded_when_asked_for(root: Path) -> None:
    reader = Reader(images_of(FacesSource(path="folder"), root), FaceInputSpec())
    clients = {"a": (Holding("p_0", (0, 1)),), "b": (Holding("p_1", (2,)),), "c": (Holding("p_1", (0,)),)}
    faces = ClientFaces(reader, clients, image_bytes=112 * 112 * 3)
    assert sorted(faces.crops) == ["a", "b", "c"]
    assert not reader.failures
    assert len(faces.crops["a"]) == 2
    labels = faces.labels_of(["a"])
    assert labels["a"].tolist() == [0, 0]
    assert labels.get("c") is None  # nobody told this client who is who
    with pytest.raises(EmptyFolderError, match="no image of 1 people"):
        faces.crops["b"]


def test_one_name_in_two_sets_is_refused() -> None:
    spec = parse('name = "x"\n[[faces]]\nkind = "shipped"\n[[faces]]\npath = "y"\n[task]\nmethod = "fedavg"\n')
    with pytest.raises(ConfigError, match="anna is in two data sets"):
        make_plan(spec, lambda _source: {"anna": 3})
