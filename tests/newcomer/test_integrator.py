"""An integrator's first minutes: README's words, with the extra `device` alone, to a verified pair."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_sdk.faces import FacePipeline
from mien.errors import InputError
from mien.specs import FaceInputSpec
from simulation.synthetic import committed_faces
from tests import wheel
from tests.helpers import ROOT
from tests.newcomer.route import Route

PERSON = "african_0030"
"""A rendered person of whom SFace recognises every picture that is taken here; it was made for real ones."""
LFW = Path(os.environ.get("MIEN_DATA", "nowhere")) / "lfw" / "images"
PICTURES = 8

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def block(page: str, heading: str, language: str = "") -> str:
    """Return the first block of that language under a heading of a page."""
    text = (ROOT / page).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} shows no block under {heading}"
    return found[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of what README's installation gives."""
    assert "pip install '.[device]'" in block("README.md", "## Start").splitlines()[0]
    folder = tmp_path_factory.mktemp("installed")
    return wheel.environment(folder / "environment", wheel.distributions(folder / "built")[1])


def lay_out(folder: Path, pictures: tuple[Path, ...]) -> None:
    """Put one person's pictures where README's lines look for them."""
    (folder / "photos" / "ada").mkdir(parents=True)
    *kept, one, other, door = pictures
    for name, picture in (("a.jpg", one), ("b.jpg", other), ("door.jpg", door)):
        shutil.copy(picture, folder / name)
    for picture in kept:
        shutil.copy(picture, folder / "photos" / "ada")


def people_of_one_face() -> Iterator[tuple[Path, ...]]:
    """Yield the usable pictures of each real person who has enough of them: several show others behind."""
    pipeline = FacePipeline(FaceInputSpec())
    for person in sorted(LFW.iterdir()):
        pictures = sorted(person.glob("*.jpg"))
        usable = tuple(picture for picture in pictures if len(pictures) >= PICTURES and is_usable(pipeline, picture))
        if len(usable) >= PICTURES:
            yield usable


def is_usable(pipeline: FacePipeline, picture: Path) -> bool:
    """Return whether a picture shows one good face."""
    try:
        pipeline.acquire_file(picture)
    except InputError:
        return False
    return True


def typed_as_readme_says(folder: Path, python: Path, capsys: pytest.CaptureFixture[str]) -> Route:
    """Return the terminal after README's lines; the first one verifies a pair."""
    first, *others = block("README.md", "## Start").splitlines()[1:]
    route = Route(folder, python)
    assert "Match" in route.type(first)
    with capsys.disabled():
        print(f" [a verified pair: {route.clock()}", end="")
    assert "Ada" in [route.type(line) for line in others][-1]
    with capsys.disabled():
        print(f"; a person who is identified: {route.clock()}]", end="")
    assert len(route.typed) == 2
    return route


def test_readmes_start_verifies_a_pair_and_so_does_the_api(
    tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path, committed_faces("test")[PERSON])
    route = typed_as_readme_says(tmp_path, python, capsys)
    program = block("docs/device.md", "## In two minutes, without a fleet", "python")
    program = program.replace("ada1.jpg", "a.jpg").replace("ada2.jpg", "b.jpg")
    (tmp_path / "pair.py").write_text(program, encoding="utf-8")
    assert route.type("python pair.py") == "True\n"


@pytest.mark.skipif(not LFW.is_dir(), reason="MIEN_DATA has no lfw/images: nearly all rendered strangers match")
def test_of_real_people_it_knows_one_from_another(
    tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ada, stranger = itertools.islice(people_of_one_face(), 2)
    lay_out(tmp_path, ada[:PICTURES])
    shutil.copy(stranger[0], tmp_path / "stranger.jpg")
    route = typed_as_readme_says(tmp_path, python, capsys)
    assert "two people" in route.type("mien-device verify-pair a.jpg stranger.jpg", answers=1)
    assert "Ada" not in route.type("mien-device identify stranger.jpg", answers=1)
    assert route.type("mien-device verify Ada door.jpg")
