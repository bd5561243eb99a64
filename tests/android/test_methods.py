"""Methods by phones of two languages over several rounds, with both servers real; one phone is gone in the last."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from device_sdk.rounds.participate import Counted
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.android.jvm import JvmPhone
from tests.android.story import crops_file
from tests.android.test_interop import GRAPHS, MODEL, PATIENCE_S, TINY
from tests.android.test_training import PUBLIC
from tests.graphs import tiny_onnx_runtime
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet
from tests.integration.test_everybody import Phone, check_steps
from tests.integration.test_real_validators import write_source
from tests.tiny import made_up_crops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TASK: Final = TaskSpec(
    "methods",
    rounds=2,
    cohort=CohortSpec(size=4, min_reports=3),
    # Whoever is gone is waited for as long as keys may take.
    deadlines=DeadlineSpec(120.0, 120.0, keys_s=40.0),
    local=LocalSpec(lr=0.01, epochs=2, batch_size=4),
    privacy=PrivacySpec(min_cohort=3, l2_clip=4.0),
)


def of(method: str, *, privacy: dict[str, Any] | None = None, **options: Any) -> TaskSpec:
    return replace(
        TASK,
        name=method,
        population=method,
        method=method,
        options=options,
        privacy=replace(TASK.privacy, **(privacy or {})),
    )


PLAIN: Final = LocalSpec(lr=0.01, steps=4, batch_size=4)
LOOSE: Final = {"l2_clip": 256.0, "coordinate_clip": 16.0, "max_weight": 8}
"""Clips that let gradients pass, which are larger than updates."""
HEAD: Final = {"kind": "cosface", "scale": 8.0}
TASKS: Final = {
    "fedgc": of("fedgc", identities=2, start="mean_feature", head=HEAD),
    "fedgc-everybody": replace(
        of("fedgc", privacy={"reveals": ("class_moment",)}, identities=2, start="mean_feature", head=HEAD),
        name="fedgc-everybody",
        population="fedgc-everybody",
    ),
    "scaffold": replace(of("scaffold", privacy=LOOSE, loss="cosface", scale=8.0), local=PLAIN),
    "mime": replace(of("mime", privacy=LOOSE, loss="cosface", scale=8.0, beta=0.5), local=PLAIN),
    "pfm": replace(of("pfm_fv", privacy=LOOSE, validation="off", scale=16.0), local=PLAIN),
    "uda": replace(of("fedfr_uda", privacy=LOOSE, scale=8.0, clustering={"distance": 0.25}), local=PLAIN),
    "fedfr": replace(
        of("fedfr", public_classes=4, hard_negative_threshold=-1.0, max_negatives=4),
        local=LocalSpec(lr=0.001, epochs=2, batch_size=4),
    ),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    folder = tmp_path_factory.mktemp("methods")
    shard = folder / "public.safetensors"
    shard.write_bytes(PUBLIC.to_bytes())
    with real_fleet(folder) as running:
        running.release(MODEL, shard=shard)
        yield running


def labelled_faces(folder: Path) -> Path:
    """Return a folder of labelled crops, for the one device that knows whose its faces are."""
    crops = np.concatenate([made_up_crops(3, seed=70 + person) for person in range(3)])
    write_source(folder, crops, np.repeat(np.arange(3), 3).astype(np.int64))
    return folder


@pytest.mark.parametrize("name", TASKS)
def test_rounds_of_both_languages_are_the_servers_steps_on_the_plain_sums(
    fleet: RealFleet, tmp_path: Path, name: str
) -> None:
    """Three phones of the JVM and one of Python, two people on one of each; in the last round three are left.

    Where targets learn from a source, that is the one of Python.
    """
    task = TASKS[name]
    task_id = fleet.submit(task)
    jvm = [
        JvmPhone.start(
            home=tmp_path / f"jvm-{number}",
            invite=fleet.invite(task.population),
            crops=crops_file(tmp_path, f"crops-{number}", made_up_crops(4, seed=90 + number)),
            guest=crops_file(tmp_path, f"guest-{number}", made_up_crops(3, seed=80 + number)),
            graphs=GRAPHS,
            sent=tmp_path / f"sent-{number}",
            min_cohort=3,
            rounds=task.rounds,
            **({"reveals": task.privacy.reveals[0]} if task.privacy.reveals else {}),
            **({"halt_at": "reported", "halt_after": task.rounds} if number == 2 else {}),
        )
        for number in range(3)
    ]
    labelled = labelled_faces(tmp_path / "labelled") if name == "uda" else None
    python = Phone(
        *(fleet, 0, task.population, lambda: tiny_onnx_runtime(TINY)),
        guest=IDENTITIES[3],
        rounds=task.rounds,
        source=labelled,
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(python.run)
        told = [phone.end(limit_s=PATIENCE_S) for phone in jvm]
        outcomes = running.result(PATIENCE_S)
    reports = fleet.outcome(task_id, limit_s=PATIENCE_S)
    assert [type(each) for each in outcomes] == [Counted] * task.rounds
    ends = [[line["kind"] for line in lines if line["event"] == "outcome"] for lines in told]
    assert ends == [["COUNTED"] * rounds for rounds in (task.rounds, task.rounds, task.rounds - 1)], told
    assert [report.num_reports for report in reports] == [4] * (task.rounds - 1) + [3]
    names = ["sent", *(f"sent-{number + 1}" for number in range(1, task.rounds))]
    theirs = [
        [(tmp_path / f"{each.replace('sent', f'sent-{number}', 1)}").read_bytes() for each in names]
        for number in range(3)
    ]
    theirs[2].pop()  # it was gone before anything of it was sent
    check_steps(fleet, task, TINY, [report.model_id for report in reports], [*theirs, python.contributions])
