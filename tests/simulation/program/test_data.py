"""`mien-sim data import`, `info` and `verify` as people and scripts run them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mien.errors import ConfigError, CorruptDataError, MienError, NotFoundError
from simulation.faces.store import CROPS, CropStore
from simulation.program.cli import app
from tests.simulation.faces.archives import PEOPLE, folder_of_people

DOCS = Path(__file__).parents[3] / "docs/simulation.md"


def run(*arguments: object) -> dict[str, object]:
    """Return the JSON that a command prints; raises its error."""
    done = CliRunner().invoke(app, ["data", *map(str, arguments), "--json"])
    if isinstance(done.exception, MienError):
        raise done.exception
    assert done.exit_code == 0, done.output
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set."""
    folder = tmp_path_factory.mktemp("data")
    source = folder_of_people(folder / "faces")
    options = ("--licence", "CC0", "--aligned", "--synthetic", "--jobs", 1)
    found = run("import", source, "--to", folder / "set", *options)
    assert found["origin"] == "faces"
    return folder / "set"


def test_info_says_what_there_is_and_names_nobody_enrolled(made: Path) -> None:
    found = run("info", made)
    assert (found["identities"], found["images"], found["size"]) == (4, sum(PEOPLE.values()), [112, 112])
    assert found["failures_by_code"] == {"image": 2}
    assert found["failed"] == ["Bo/broken.png", "Nobody/x.png"]
    assert found["is_synthetic"] is True
    assert "Ada" not in json.dumps(found)
    shown = CliRunner().invoke(app, ["data", "info", str(made)], env={"COLUMNS": "160"})
    assert str(found["content_sha256"]) in shown.stdout


def test_who_is_left_out_is_said_with_the_reason(tmp_path: Path) -> None:
    """Nobody is dropped without a word: neither one whose pictures are none, nor one without any."""
    source = folder_of_people(tmp_path / "faces")
    (source / "Empty").mkdir()
    (source / "Notes").mkdir()
    (source / "Notes" / "about.txt").write_text("no picture")
    options = ("--licence", "CC0", "--aligned", "--synthetic", "--jobs", 1)
    found = run("import", source, "--to", tmp_path / "set", *options)
    assert found["identities"] == 4
    assert (found["people_left_out"], found["left_out"]) == (3, ["Empty", "Nobody", "Notes"])
    assert found["failures_by_code"] == {"empty_folder": 2, "image": 2}
    shown = CliRunner().invoke(app, ["data", "info", str(tmp_path / "set")], env={"COLUMNS": "80"}).stdout
    assert "2: no picture, or a damaged one" in shown
    assert "2: a folder without pictures" in shown
    assert "Nobody/x.png: no picture" in shown
    assert "without a face" not in shown
    assert str(found["content_sha256"]) in shown  # in one piece, to be copied
    CropStore(tmp_path / "set").verify()


@pytest.mark.parametrize("verb", ["import", "info", "verify"])
def test_examples_lie_outside_of_a_work_tree(verb: str) -> None:
    """Whoever follows the docs stands in a clone, where real faces are refused."""
    shown = " ".join(CliRunner().invoke(app, ["data", verb, "--help"]).stdout.split())
    examples = [line for line in DOCS.read_text().splitlines() if line.startswith(f"mien-sim data {verb}")]
    assert examples
    for text in (shown.partition("Example: ")[2], *examples):
        assert re.search(r"~/data/\w+\.crops", text), text


def test_verify_answers_and_fails(made: Path) -> None:
    assert run("verify", made)["verified"] is True
    data = bytearray((made / CROPS).read_bytes())
    data[-1] ^= 1
    (made / CROPS).write_bytes(data)
    try:
        with pytest.raises(CorruptDataError):
            run("verify", made)
    finally:
        data[-1] ^= 1
        (made / CROPS).write_bytes(data)


def test_what_cannot_be(made: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        run("info", tmp_path)
    with pytest.raises(ConfigError, match="--licence is empty"):
        run("import", tmp_path, "--to", tmp_path / "x", "--licence", "")


@pytest.mark.parametrize("verb", ["import", "info", "verify"])
def test_every_command_has_an_example(verb: str) -> None:
    done = CliRunner().invoke(app, ["data", verb, "--help"])
    assert f"Example: mien-sim data {verb}" in " ".join(done.stdout.split())
