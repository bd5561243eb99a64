"""The page's example tasks can be planned, run to their last round within their budget, and say what they promise."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.dp import expected_noise
from coordinator.commands.tasks import read_task
from mien.dp.ledger import Ledger
from mien.dp.words import guarantee
from mien.layout import ParameterEntry, ParameterLayout
from mien.protocol.canonical import model_to_json
from mien.rounds.plan import TaskPlan, plan_task
from mien.secagg.noise import opening
from mien.specs import FaceInputSpec, ModelSpec
from tests.tiny import SHARD

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/differential-privacy.md").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "docs/examples").glob("dp-*.toml"))

# The end of SFace: shapes as the importer makes them.
LAYOUT = ParameterLayout(
    (
        ParameterEntry("block13.depthwise.conv.weight", (1024, 1, 3, 3)),
        ParameterEntry("block13.depthwise.conv.bias", (1024,)),
        ParameterEntry("block13.depthwise.act.weight", (1024,)),
        ParameterEntry("block13.pointwise.conv.weight", (1024, 1024, 1, 1)),
    )
)
SPEC_JSON = model_to_json(
    ModelSpec("sface", LAYOUT.sha256, FaceInputSpec(), "shapes only", "none", ("block13.*",)), LAYOUT
)


def plan_of(path: Path) -> TaskPlan:
    return plan_task(read_task(path), SPEC_JSON, public_shard=SHARD)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs_to_its_last_round_within_its_budget(path: Path) -> None:
    plan, ledger = plan_of(path), Ledger("phones")
    assert f"](examples/{path.name})" in PAGE
    for round_ in range(1, plan.task.rounds + 1):
        config = plan.round_config("0" * 16, round_, 1, "0" * 64)
        event = ledger.check(opening(plan.task, "t", round_, 1, config, 90))
        ledger = ledger.plus(event)
    assert len(ledger.composition()) == 1
    assert event.epsilon_after is not None
    assert 0.9 * 8 < event.epsilon_after <= 8
    assert event.effective_multiplier > 0.99 * event.noise_multiplier  # rounding is nearly free


def test_one_participation_more_would_exceed_the_budget() -> None:
    """The examples are tight: the noise multiplier is what ten participations need, and no more."""
    task = plan_of(ROOT / "docs/examples/dp-central.toml").task
    assert task.privacy.dp.noise_multiplier == pytest.approx(2.017, rel=0.05)
    assert "epsilon 8 at delta 1e-05" in guarantee(task)[0]
    assert "at most 10 sums of this task, at least 5 rounds apart" in " ".join(guarantee(task))


def test_every_mode_has_its_own_words() -> None:
    tasks = {path.stem: plan_of(path).task for path in EXAMPLES}
    words = {stem: " ".join(guarantee(task)) for stem, task in tasks.items()}
    assert "trusted to add the noise" in words["dp-central"]
    assert "at most 10% of a cohort" in words["dp-skellam"]
    assert "50% quantile" in words["dp-adaptive"]
    off = tasks["dp-central"].privacy
    plain = replace(tasks["dp-central"], privacy=replace(off, dp=type(off.dp)()))
    assert guarantee(plain)[0].startswith("No differential privacy is promised")


def test_the_pages_table_is_what_the_formula_gives() -> None:
    """`| parameters | phones | mechanism | noise of the mean / S |`, as `python -m benchmarks.dp` measured it."""
    rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (central|Skellam) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 8
    for size, devices, mechanism, measured in rows:
        d, n = int(size.replace(",", "")), int(devices.replace(",", ""))
        honest = n if mechanism == "central" else n * 8 // 9
        assert float(measured) == pytest.approx(math.sqrt(d * n / honest) / n, rel=0.06)
        assert expected_noise(1.0, d, n, honest) == pytest.approx(math.sqrt(d * n / honest) / n)
