"""The operator's page of tasks: what it writes is taken."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from mien.methods.fedfr_uda import FEDFR_UDA, options_of
from mien.records import from_mapping
from mien.rounds.plan import check_hidden
from mien.specs import TaskSpec

PAGE = Path(__file__).parents[2] / "docs" / "operator" / "tasks.md"


def test_a_task_with_a_source_as_the_page_has_it_is_not_refused() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "[cohort.must_include]" in block]
    task = from_mapping(TaskSpec, {"name": "with-a-source", "method": "fedfr_uda", **tomllib.loads(block)})
    assert task.cohort.min_labelled == 1
    check_hidden(task)


def test_pure_clusters_as_the_page_has_them_need_public_faces() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "purity" in block]
    task = from_mapping(TaskSpec, {"name": "pure", "method": "fedfr_uda", **tomllib.loads(block)})
    assert options_of(task).clustering.purity == 0.95
    assert FEDFR_UDA.requirements(task).public_faces
