"""A method in a researcher's own file: it runs, in workers too; its records are read without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mien.errors import ConfigError, LayoutMismatchError, NotFoundError
from mien.methods import registry
from simulation.pages.run_page import write_run
from simulation.runs.grid import load_sweep, run_sweep
from simulation.runs.records import RunFolder
from simulation.runs.run import run_experiment
from simulation.runs.spec import CodeSource, load
from tests.examples.by_path import EXAMPLES
from tests.helpers import forget_outside_methods
from tests.simulation.runs.test_sweep import BASE

TOML = (
    BASE.replace('method = "fedavg"', 'method = "mine.py:FEDADAM"').replace("rounds = 2", "rounds = 1")
    + """
[task.options]
beta1 = 0.5
"""
)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Return an experiment whose method lies beside it."""
    (tmp_path / "mine.py").write_text((EXAMPLES / "my_method.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "mine.toml").write_text(TOML)
    return tmp_path / "mine.toml"


def quiet(_text: str) -> None:
    """Say nothing."""


def test_it_runs_and_its_records_are_read_without_its_code(experiment: Path) -> None:
    spec = load(experiment)
    assert spec.task.method == "fedadam"
    out = experiment.parent / "out"
    run_experiment(spec, out, experiment.parent, tell=quiet)
    experiment.with_name("mine.py").unlink()
    forget_outside_methods()
    kept = RunFolder(out).spec()
    assert len(RunFolder(out).records()) == 1
    assert kept == spec
    assert "fedadam" in write_run(out).read_text(encoding="utf-8")
    assert "fedadam" not in registry.METHODS


def test_a_run_does_not_go_on_with_changed_code(experiment: Path) -> None:
    spec = load(experiment)
    forget_outside_methods()
    with experiment.with_name("mine.py").open("a") as file:
        file.write("# another thought\n")
    assert spec.code is not None
    with pytest.raises(ConfigError, match="changed since this run began"):
        spec.code.enter()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("1 / 0\n", "does not run: ZeroDivisionError"),
        ("def (\n", "does not run: SyntaxError"),
        ("X = 1\n", "has no 'FEDADAM'"),
        ("FEDADAM = 3\n", "is no mien.methods.base.Method"),
    ],
)
def test_what_is_wrong_with_the_file_is_said(experiment: Path, code: str, says: str) -> None:
    experiment.with_name("mine.py").write_text(code)
    with pytest.raises(ConfigError, match=says):
        load(experiment)


def test_a_file_that_is_not_there_is_named(experiment: Path) -> None:
    experiment.with_name("mine.py").unlink()
    with pytest.raises(NotFoundError, match=r"there is no file .*mine\.py"):
        load(experiment)


def test_its_options_are_checked_as_any_method_s(experiment: Path) -> None:
    experiment.write_text(TOML.replace("beta1 = 0.5", "beta3 = 0.5"))
    with pytest.raises(ConfigError, match=r"task\.options\.beta3"):
        load(experiment)


def test_other_machines_are_refused_a_file_of_this_one(experiment: Path) -> None:
    experiment.write_text('engine = "cluster"\n' + TOML)
    with pytest.raises(ConfigError, match="install the method there as a package"):
        load(experiment)


def test_a_sweep_s_workers_run_it(experiment: Path) -> None:
    cases = """
[sweep]
seeds = [0]
[[sweep.cases]]
name = "average"
"task.method" = "fedavg"
"task.options" = { margin = 0.9 }
[[sweep.cases]]
name = "adam"
"task.method" = "mine.py:FEDADAM"
"task.options" = { beta1 = 0.5 }
"""
    experiment.write_text(TOML.replace("mine.py:FEDADAM", "fedavg").replace("beta1 = 0.5", "margin = 0.9") + cases)
    out = experiment.parent / "sweep"
    results = run_sweep(load_sweep(experiment), out, experiment.parent, tell=quiet)
    assert results.failures == ()
    assert [RunFolder(out / "runs" / f"{name}-s0").spec().task.method for name in ("average", "adam")] == [
        "fedavg",
        "fedadam",
    ]


def test_what_does_not_fit_names_the_line_of_the_file(experiment: Path) -> None:
    file, out = experiment.with_name("mine.py"), experiment.parent / "out"
    right = 'return moved(part, state, step, {"first": first, "second": second})'
    at = next(number for number, line in enumerate(file.read_text().splitlines(), 1) if right in line)
    file.write_text(file.read_text().replace(right, "return replace(state, theta=part.scatter(state.theta, step[:3]))"))
    with pytest.raises(LayoutMismatchError) as refused:
        run_experiment(load(experiment), out, experiment.parent, tell=quiet)
    assert str(refused.value).endswith(f"({file}, line {at}, in server_step)")
    assert refused.value.message == str(refused.value)


def test_a_line_that_another_process_ran_is_named_too(tmp_path: Path) -> None:
    """What a pool raises holds its worker's frames as text."""
    code = CodeSource(str(tmp_path / "mine.py"), "MINE", "")
    with pytest.raises(ConfigError, match=r"no good \(.*mine\.py, line 7, in device_round\)$"), code.located():
        raise ConfigError("no good") from RuntimeError(f'  File "{tmp_path / "mine.py"}", line 7, in device_round')
    with pytest.raises(LayoutMismatchError, match=r"other size \(after a step of MINE in .*mine\.py"), code.located():
        raise LayoutMismatchError("other size")
    with pytest.raises(ConfigError, match=r"^the faces are gone$"), code.located():
        raise ConfigError("the faces are gone")
