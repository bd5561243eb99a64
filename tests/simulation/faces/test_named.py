"""Data sets by name: where a name is looked up, what is not LFW, and that a path stays a path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mien.errors import ConfigError, NotFoundError
from simulation.faces import named
from simulation.faces.sources import FacesSource, counts_of, data_sha256, faces_named, faces_root, is_there
from simulation.faces.writer import Imported, StoreTerms, StoreWriter
from simulation.runs.spec import load
from simulation.synthetic import committed_faces

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data sets, which MIEN_DATA names: two as they are published, and one of `mien-sim data import`."""
    root = tmp_path / "data"
    files = next(iter(committed_faces("public").values()))[:2]
    for folder in (root / "own" / "ann", root / "lfw" / "images" / "Ann_Example"):
        folder.mkdir(parents=True)
        for number, file in enumerate(files, 1):
            (folder / f"{folder.name}_{number:04d}.jpg").write_bytes(file.read_bytes())
    (root / "lfw" / "protocol").mkdir()
    (root / ".hidden").mkdir()
    with StoreWriter(
        root / "packed", StoreTerms("CC0", "made up", is_synthetic=True), height=8, width=8, plan={}
    ) as to:
        to.add(Imported("ben", np.zeros((3, 8, 8, 3), np.uint8), ("a", "b", "c")))
        to.finish("x")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("MIEN_DATA", str(root))
    return root


def known_layout(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let what lies in a folder be LFW: a list of real people's pictures does not belong here."""
    monkeypatch.setattr(named, "LFW_LAYOUTS", {named.layout_sha256(folder): "two images"})


def test_a_name_is_a_folder_of_mien_data(root: Path) -> None:
    assert named.folder_of(Path("own")) == root / "own"
    assert named.folder_of(Path("packed")) == root / "packed"
    assert named.folder_of(Path("shipped")) is None
    assert named.folder_of(None) is None


def test_a_path_is_no_name(root: Path) -> None:
    for path in (root / "own", Path("../data/own")):
        assert named.folder_of(path) == path
        assert faces_root(path) == path
        assert faces_named(path) == {"kind": "folder", "path": "."}
    Path("own").mkdir()  # here: what was a path before there were names is one still
    assert named.folder_of(Path("own")) == Path("own")
    assert faces_root(Path("own")) == Path("own")
    for missing in ("none/images", "/nowhere/none"):
        with pytest.raises(NotFoundError, match="there is no folder"):
            named.folder_of(Path(missing))
        with pytest.raises(NotFoundError, match="there is no folder"):
            faces_root(Path(missing))


@pytest.mark.parametrize("read", [named.folder_of, faces_named])
def test_an_unknown_name_is_told_with_those_that_there_are(read: object, root: Path) -> None:
    assert callable(read)
    with pytest.raises(NotFoundError, match="known there: shipped, lfw, own, packed") as caught:
        read(Path("owm"))
    assert str(root) in caught.value.message


@pytest.mark.parametrize("read", [named.folder_of, faces_named])
def test_a_name_without_a_folder_of_data_sets(read: object, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(read)
    monkeypatch.delenv("MIEN_DATA")
    with pytest.raises(NotFoundError, match="MIEN_DATA, the folder of data sets by name, is unset"):
        read(Path("own"))
    assert not read(Path("shipped")) or read(Path("shipped")) == {"kind": "shipped"}


@pytest.mark.parametrize("read", [named.folder_of, faces_named])
def test_a_folder_of_data_sets_that_is_gone(read: object, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 lists a folder when it is asked to, and not when its names are wanted."""
    assert callable(read)
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(list(listed(path))))
    monkeypatch.setenv("MIEN_DATA", str(root / "gone"))
    with pytest.raises(NotFoundError, match=r"there are no faces named 'own' in .*known there: shipped"):
        read(Path("own"))


def test_lfw_is_known_by_the_names_of_its_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = root / "lfw" / "images"
    with pytest.raises(ConfigError, match="is not LFW as its lists have it") as caught:
        named.folder_of(Path("lfw"))
    assert named.layout_sha256(images)[:16] in caught.value.message
    assert "13,233 images of 5,749 people" in caught.value.message
    assert named.folder_of(images) == images  # by its path nothing is checked
    known_layout(monkeypatch, images)
    assert named.folder_of(Path("lfw")) == images
    named.check_lfw.cache_clear()
    (images / "Ann_Example" / "Ann_Example_0002.jpg").unlink()
    with pytest.raises(ConfigError, match="is not LFW"):
        named.folder_of(Path("lfw"))


def test_the_layout_is_the_lists_and_not_the_order_of_a_folder(tmp_path: Path) -> None:
    """The digest is that of sorted lines, so that the published lists give it without a picture."""
    for name in ("B/B_0001.jpg", "A/A_0002.jpg", "A/A_0001.jpg", ".c/c.jpg", "A/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    # printf 'A/A_0001.jpg\nA/A_0002.jpg\nB/B_0001.jpg\n' | sha256sum
    assert named.layout_sha256(tmp_path) == "fec08877947cf7b5d83f8cfc26d1f01bd0fcb7e477767269cec29d3f87f694f0"


def test_an_experiment_names_its_faces(root: Path) -> None:
    assert counts_of(FacesSource("named", "own"), root) == {"ann": 2}
    assert counts_of(FacesSource("named", "packed"), root) == {"ben": 3}
    assert data_sha256((FacesSource("named", "own"),), root) == data_sha256((FacesSource(path="own"),), root)
    assert data_sha256((FacesSource("named", "packed"),), root) == data_sha256((FacesSource("store", "packed"),), root)
    assert not is_there(FacesSource("named", "none"), root)
    for read in (counts_of, lambda source, root: data_sha256((source,), root)):
        with pytest.raises(NotFoundError, match="known there: shipped, lfw, own, packed"):
            read(FacesSource("named", "none"), root)
        with pytest.raises(ConfigError, match="is not LFW"):
            read(FacesSource("named", "lfw"), root)
    with pytest.raises(ConfigError, match='write kind = "shipped"'):
        FacesSource("named", "shipped")


def test_a_name_stands_in_for_the_faces_of_a_file(root: Path) -> None:
    file = ROOT / "docs" / "examples" / "statistics.toml"
    assert [source.kind for source in load(file).faces] == ["shipped"]
    assert load(file, faces_named(Path("own"))).faces == (FacesSource("named", "own"),)
    assert load(file, faces_named(Path("shipped"))).faces == (FacesSource("shipped"),)
    assert faces_root(Path("own")) == root


def test_a_folder_stands_in_for_shipped_faces_and_is_where_paths_start(root: Path, tmp_path: Path) -> None:
    shipped, own = ROOT / "docs" / "examples" / "statistics.toml", tmp_path / "own.toml"
    own.write_text(shipped.read_text("utf-8").replace('kind = "shipped"', 'kind = "folder"\npath = "own"'), "utf-8")
    assert load(shipped, faces_named(root / "own")).faces == (FacesSource("folder", "."),)
    assert counts_of(load(shipped, faces_named(root / "own")).faces[0], root / "own") == counts_of(
        FacesSource("folder", "own"), root
    )
    assert load(own, faces_named(root)).faces == (FacesSource("folder", "own"),)
    assert load(shipped, faces_named(root / "packed")).faces == (FacesSource("store", "."),)


def test_other_faces_stand_in_for_each_of_several_shipped_sources(root: Path) -> None:
    """Who is labelled, and of which domain, stays as the file says it: else all would be labelled."""
    file = ROOT / "docs" / "examples" / "adaptation.toml"
    for faces, kind, path in ((root / "own", "folder", "."), (Path("own"), "named", "own")):
        assert load(file, faces_named(faces)).faces == (
            FacesSource(kind, path, "caucasian", people="caucasian_*"),
            FacesSource(kind, path, "african", labelled=False, people="african_*"),
        )
