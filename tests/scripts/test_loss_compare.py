"""`scripts/loss_compare` sees a difference where there is one, and runs the forms of the test of every method."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mien.errors import ConfigError
from scripts import loss_hashes
from tests.integration.test_every_method import CASES

ROOT = Path(__file__).resolve().parents[2]
Runs = dict[str, Any]


def rounds(*models: str) -> dict[str, Any]:
    """Return a run's made-up hashes."""
    return {"rounds": [{"theta": model, "server": "s", "losses": "l"} for model in models]}


RUNS: Runs = {
    "fedavg": {"sequential": {"7": rounds("a", "b"), "8": rounds("c", "d")}},
    "scaffold": {"sequential": {"7": rounds("e", "f")}, "fused": {"7": {"not_applicable": "it needs each update"}}},
}


def compare(folder: Path, one: Runs, other: Runs, *options: str) -> subprocess.CompletedProcess[str]:
    """Return the script's end on two files of hashes."""
    files = [folder / "a.json", folder / "b.json"]
    for file, runs in zip(files, (one, other), strict=True):
        file.write_text(json.dumps({"made_with": {}, "runs": runs}))
    command = [sys.executable, str(ROOT / "scripts" / "loss_compare"), *map(str, files), "--assert-equal", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_equal_hashes_are_equal(tmp_path: Path) -> None:
    ended = compare(tmp_path, RUNS, RUNS)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line.split() for line in ended.stdout.splitlines()[:4]] == [
        ["form", "engine", "seed", "7", "seed", "8"],
        ["fedavg", "sequential", "equal", "equal"],
        ["scaffold", "sequential", "equal"],
        ["scaffold", "fused", "not", "applicable"],
    ]
    assert ended.stdout.endswith("scaffold on fused: it needs each update\n4 runs: 3 equal, 1 not applicable\n")


def _another_model(runs: Runs) -> None:
    runs["fedavg"]["sequential"]["8"]["rounds"][1]["theta"] = "other"


def _other_losses(runs: Runs) -> None:
    runs["scaffold"]["sequential"]["7"]["rounds"][0]["losses"] = "other"


def _a_round_less(runs: Runs) -> None:
    runs["fedavg"]["sequential"]["7"]["rounds"].pop()


def _an_engine_less(runs: Runs) -> None:
    del runs["scaffold"]["sequential"]


def _a_form_less(runs: Runs) -> None:
    del runs["fedavg"]


def _applicable(runs: Runs) -> None:
    runs["scaffold"]["fused"]["7"] = rounds("g", "h")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_another_model, "differs at round 2: theta"),
        (_other_losses, "differs at round 1: losses"),
        (_a_round_less, "differs at round 2: theta, server, losses"),
        (_an_engine_less, "missing in B"),
        (_a_form_less, "missing in B"),
        (_applicable, "runs only in B"),
    ],
)
def test_a_difference_is_found(tmp_path: Path, change: Callable[[Runs], None], said: str) -> None:
    other = copy.deepcopy(RUNS)
    change(other)
    ended = compare(tmp_path, RUNS, other)
    assert ended.returncode == 1
    assert said in ended.stdout
    turned = compare(tmp_path, other, RUNS)
    assert turned.returncode == 1
    assert said.replace("in B", "in A") in turned.stdout


def test_only_what_was_asked_for_is_compared(tmp_path: Path) -> None:
    other = copy.deepcopy(RUNS)
    _another_model(other)
    assert compare(tmp_path, RUNS, other, "--forms", "scaffold").returncode == 0
    assert compare(tmp_path, RUNS, other, "--engines", "sequential").returncode == 1


@pytest.mark.parametrize("options", [("--forms", "scaffold", "--engines", "fused"), ("--forms", "none")])
def test_nothing_compared_is_not_equal(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert compare(tmp_path, RUNS, RUNS, *options).returncode == 1


def test_the_forms_are_those_of_the_test_of_every_method() -> None:
    forms = {
        name: loss_hashes.Form(case.method, case.options, case.privacy.reveals, case.several, case.lr)
        for name, case in CASES.items()
    }
    assert forms == loss_hashes.FORMS


def test_a_tree_is_measured_the_same_twice_and_seeds_differ() -> None:
    """By every engine of this process; where the code moves, the places of its names must follow."""
    engines = ["sequential", "fused", "stacked"]
    one, same = (loss_hashes.measured(["fedavg", "scaffold"], engines, [7, 8], ROOT) for _ in range(2))
    assert one == same
    ran = [run for form in one.values() for seeds in form.values() for run in seeds.values() if "rounds" in run]
    assert len({run["rounds"][-1]["theta"] for run in ran}) == len(ran) == 10
    assert "needs each client's own update" in one["scaffold"]["fused"]["7"]["not_applicable"]


def test_every_name_has_a_place_in_this_tree() -> None:
    pytest.importorskip("ray")
    for name in loss_hashes.PLACES:
        assert loss_hashes.found(name)


def test_a_name_is_looked_for_in_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        loss_hashes, "PLACES", {"Error": ("mien.no.such", "mien.specs", "mien.errors:ConfigError"), "No": ("mien.no",)}
    )
    assert loss_hashes.found("Error") is ConfigError
    with pytest.raises(SystemExit, match=r"No is in none of mien\.no: add its place"):
        loss_hashes.found("No")


def test_modules_of_another_tree_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"comes from .* and not from "):
        loss_hashes.check_tree(tmp_path)


def test_an_installed_tree_does_not_stand_in_for_what_the_measured_one_lacks(tmp_path: Path) -> None:
    """An editable install finds modules that a package of the same name, first on the path, does not have."""
    (tmp_path / "mien").mkdir()
    (tmp_path / "mien" / "__init__.py").touch()
    command = (
        "from scripts import loss_hashes; loss_hashes.leave_out_installed(); "
        "import sys; sys.path[:] = [sys.argv[1], *sys.path[1:]]; loss_hashes.found('TaskSpec')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "TaskSpec is in none of mien.specs" in ended.stderr
