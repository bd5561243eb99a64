"""mien-sim fleet: policies side by side, files that say what was run, and mistakes that are named."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mien.errors import ConfigError, MienError
from simulation.fleet.policies import changed, policies
from simulation.program.cli import app
from simulation.program.fleet import Options, Setting

ROOT = Path(__file__).parents[3]
TASK = """
name = "small"
method = "fedavg"
rounds = 1000
[cohort]
size = 8
min_reports = 6
[privacy]
min_cohort = 6
[local]
steps = 5
batch_size = 8
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TASK)
    return path


def call(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["fleet", *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, MienError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_policies_are_compared_and_written(task: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--phones", 200, "--days", 0.02, "--set", "cohort.over_selection=1.5", "--out", out)
    answer = json.loads(call(task, *options, "--json"))
    assert [each["policy"] for each in answer["policies"]] == ["small", "cohort.over_selection=1.5"]
    assert answer["policies"][1]["lost"]["spare"] > answer["policies"][0]["lost"]["spare"]
    kept = json.loads((out / "summary.json").read_text())
    assert kept["run"]["phones"] == 200
    assert kept["policies"][1]["task"]["cohort"]["over_selection"] == 1.5
    lines = [json.loads(line) for line in (out / "small.attempts.jsonl").read_text().splitlines()]
    assert len(lines) == answer["policies"][0]["attempts"]
    assert {"stages", "fates", "worked_s"} <= set(lines[0])
    page = (out / "report.html").read_text()
    assert "Rounds over the clock" in page
    assert "Phones are emulated" in page


def test_every_policy_has_a_file_of_its_own(task: Path, tmp_path: Path) -> None:
    """However long its name is, and whatever is in it that no file may be called."""
    long = "deadlines.training_s=120.0,deadlines.upload_s=60.0,deadlines.keys_s=10.0,deadlines.shares_s=10.0"
    changes = (f"{long},seed=1", f"{long},seed=2", "seed = 3", "seed  =  3", "seed=4")
    chosen = [word for change in changes for word in ("--set", change)]
    call(task, "--phones", 50, "--days", 0.005, *chosen, "--out", tmp_path / "out")
    names = [path.name for path in (tmp_path / "out").glob("*.attempts.jsonl")]
    assert len(names) == 1 + len(changes)
    assert "seed=4.attempts.jsonl" in names
    assert max(map(len, names)) < 120


def test_policies_are_measured_over_the_same_time(tmp_path: Path) -> None:
    """A task whose rounds are soon over, and one that is paused, count for as long as the others."""
    task = tmp_path / "short.toml"
    task.write_text(TASK.replace("rounds = 1000", "rounds = 1"))
    options = ("--phones", 200, "--days", 0.02, "--out", tmp_path / "out")
    stuck = "deadlines.training_s=2,local.steps=5000"
    policies = ("--set", "rounds=90000", "--set", stuck)
    once, endless, paused = json.loads(call(task, *options, *policies, "--json"))["policies"]
    assert [each["days"] for each in (once, endless, paused)] == [0.02] * 3
    assert once["rounds_closed"] == endless["rounds_closed"] > 1
    assert 0 < once["task_rounds_s"] < 0.02 * 86_400
    assert (once["task_rounds"], endless["task_rounds_s"]) == (1, None)
    assert (paused["state"], paused["rounds_per_day"]) == ("paused", 0)
    shown = call(task, *options, *policies)
    assert "the 1 of the task were over after" in shown
    assert "last paused after 0.0" in shown
    assert "All were measured for 0.02 days" in shown


def test_the_table_has_ratios(task: Path, tmp_path: Path) -> None:
    text = call(task, "--phones", 200, "--days", 0.01, "--set", "cohort.size=7", "--out", tmp_path / "out")
    assert "(1." in text or "(0." in text
    assert "Emulated phones" in text


def test_the_table_numbers_its_policies_and_names_them_in_full_below(task: Path, tmp_path: Path) -> None:
    change = "deadlines.training_s=120,deadlines.upload_s=60,deadlines.keys_s=10,deadlines.shares_s=10"
    text = call(task, "--phones", 50, "--days", 0.002, "--set", change, "--out", tmp_path / "out")
    head = next(line for line in text.splitlines() if "policy" in line)
    assert re.findall(r"\w+", head) == ["policy", "1", "2"]
    assert "\n1  small: running" in text
    assert f"\n2  {change}: running" in text


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    """The task that docs/simulation.md tries first is there, and is as the table below it says."""
    text = (ROOT / "docs/simulation.md").read_text()
    first = next(line for line in text.splitlines() if line.startswith("mien-sim fleet"))
    _, _, path, *options = shlex.split(first, comments=True)
    assert path == "docs/examples/fleet.toml"
    answer = json.loads(call(ROOT / path, *options, "--days", 0.02, "--out", tmp_path / "out", "--json"))
    assert [each["days"] for each in answer["policies"]] == [0.02, 0.02]
    assert answer["policies"][1]["rounds_closed"] > 0


def test_the_guides_night_runs_by_the_profile_beside_it(tmp_path: Path) -> None:
    """As the file's own first lines say."""
    path = ROOT / "docs/examples/night.toml"
    command = next(line for line in path.read_text().splitlines() if line.startswith("# mien-sim fleet"))
    _, _, _, named, *options = shlex.split(command)
    assert ROOT / named == path
    options[options.index("--profile") + 1] = str(ROOT / options[options.index("--profile") + 1])
    answer = json.loads(call(path, *options, "--days", 0.02, "--out", tmp_path / "out", "--json"))
    assert [each["phones"] for each in answer["policies"]] == [200]
    availability = json.loads((tmp_path / "out" / "summary.json").read_text())["run"]["profile"]["availability"]
    assert [availability[name] for name in ("job_minutes", "job_every_minutes", "restricted_share")] == [10, 11, 0.1]


def test_a_trace_says_how_many_phones_there_are(task: Path, tmp_path: Path) -> None:
    client = {"active": [0], "inactive": [3600], "finish_time": 7200}
    speed = {"computation": 50.0, "communication": 8000.0}
    (tmp_path / "trace.json").write_text(json.dumps({str(number): client for number in range(30)}))
    (tmp_path / "capacity.json").write_text(json.dumps({str(number): speed for number in range(30)}))
    traces = "--trace", tmp_path / "trace.json", "--capacity", tmp_path / "capacity.json"
    answer = json.loads(call(task, *traces, "--days", 0.02, "--out", tmp_path / "out", "--json"))
    (policy,) = answer["policies"]
    assert policy["phones"] == 30
    assert policy["there_by_hour"][0] == 30
    assert [tier["name"] for tier in policy["tiers"]] == ["fast third", "middle third", "slow third"]


@pytest.mark.parametrize("limit", ["job_minutes = 10", "restricted_share = 0.5"])
def test_a_limit_on_an_apps_time_is_refused_beside_a_trace(limit: str, task: Path, tmp_path: Path) -> None:
    client = {"active": [0], "inactive": [3600], "finish_time": 7200}
    (tmp_path / "trace.json").write_text(json.dumps({"0": client}))
    (tmp_path / "mine.toml").write_text(f"[availability]\n{limit}\n")
    options = Options((task,), profile=tmp_path / "mine.toml", trace=tmp_path / "trace.json")
    with pytest.raises(ConfigError, match=r"availability\.\w+ is .* cuts no span of a trace; leave it out"):
        Setting.of(options)


def test_the_default_profile_can_be_printed_and_given_back(task: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(call("--show-profile"))
    short = "--phones", 100, "--days", 0.005, "--json"
    one = json.loads(call(task, *short, "--profile", mine, "--out", tmp_path / "a"))
    two = json.loads(call(task, *short, "--out", tmp_path / "b"))
    assert one["policies"] == two["policies"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "name the task"),
        (("--set", "cohort.sizes=3"), "did you mean 'cohort.size'"),
        (("--set", "cohort"), "field=value"),
        (("--set", "cohort.size=x"), "cohort.size"),
        (("--set", "name.x=3"), "no table"),
        (("--days", "0"), "--days is 0"),
        (("--seed", "-1"), "--seed is -1"),
        (("--seed", str(2**63)), "--seed is"),
        (("--phones", "10000000000"), "--phones is 10000000000"),
        (("--set", "seed=1", "--set", "seed=1"), "two policies have one name"),
    ],
)
def test_mistakes_are_named(task: Path, arguments: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(*((task, *arguments) if arguments else ()))
    assert what in caught.value.message


def test_several_files_go_by_their_names(task: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(TASK.replace("size = 8", "size = 9"))
    found = policies([task, other], ["seed=3"])
    assert [each.name for each in found] == ["small", "small: seed=3", "other", "other: seed=3"]
    assert [each.task.cohort.size for each in found] == [8, 8, 9, 9]


def test_changes_are_values_of_toml(task: Path) -> None:
    (policy,) = policies([task], [])
    found = changed(policy.task, "asynchronous.max_concurrency=3,server.lr=0.5,trainable=['a*']")
    assert found.asynchronous is not None
    assert (found.asynchronous.max_concurrency, found.server.lr, found.trainable) == (3, 0.5, ("a*",))


def test_words_need_no_quotes_and_lists_keep_their_commas(task: Path) -> None:
    """As `mien-sim sweep --set` takes them."""
    (policy,) = policies([task], [])
    found = changed(policy.task, "method=scaffold,trainable=['a*', 'b*'],population=night,seed=3")
    assert (found.method, found.trainable, found.population, found.seed) == ("scaffold", ("a*", "b*"), "night", 3)
