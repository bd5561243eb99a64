"""FedFace against everybody by phones of two languages in the same rounds, with both servers real.

The adapter is large enough for the model before to be streamed, beside what fits into an assignment.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk.export.build import export_graphs
from device_sdk.models.models import Model
from device_sdk.rounds.participate import Counted
from device_sdk.runtimes.forms import standard_forms
from device_sdk.runtimes.manifest import folder_for
from mien.layout import model_id
from mien.protocol.replies import INLINE_BYTES
from tests.android.jvm import JvmPhone
from tests.android.story import crops_file
from tests.integration.real_fleet import RealFleet, real_fleet
from tests.integration.test_everybody import TASK, Phone, check_steps
from tests.tiny import made_up_crops, tiny_adapted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 300.0
TINY = tiny_adapted(256)
MODEL = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("everybody")) as running:
        running.release(MODEL)
        yield running


def test_rounds_of_both_languages_are_the_servers_steps_on_the_plain_sums(fleet: RealFleet, tmp_path: Path) -> None:
    """Two phones of Python and one of the JVM: the first round opens the moments, the others train against them."""
    assert 4 * TINY.part().size > INLINE_BYTES
    graphs = folder_for(tmp_path / "graphs", TINY.layout)
    forms = standard_forms("moment_softmax")
    export_graphs(TINY.spec, TINY.layout, graphs, forms=forms, backbone=tiny_adapted(256).backbone)
    spec = replace(TASK, name="both", population="both")
    task_id = fleet.submit(spec)
    jvm = JvmPhone.start(
        home=tmp_path / "jvm",
        invite=fleet.invite("both"),
        crops=crops_file(tmp_path, "crops", made_up_crops(4, seed=90)),
        graphs=graphs,
        sent=tmp_path / "sent",
        min_cohort=3,
        reveals="class_moment",
        rounds=spec.rounds,
    )
    python = [Phone(fleet, number, "both", lambda: tiny_adapted(256).runtime()) for number in range(2)]
    with ThreadPoolExecutor(len(python)) as pool:
        running = [pool.submit(phone.run) for phone in python]
        told = jvm.end(limit_s=PATIENCE_S)
        outcomes = [each.result(PATIENCE_S) for each in running]
    reports = fleet.outcome(task_id, limit_s=PATIENCE_S)
    assert [line["kind"] for line in told if line["event"] == "outcome"] == ["COUNTED"] * spec.rounds, told
    assert [[type(each) for each in outcome] for outcome in outcomes] == [[Counted] * spec.rounds] * 2
    theirs = [(tmp_path / name).read_bytes() for name in ("sent", "sent-2", "sent-3")]
    sent = [theirs, *(phone.contributions for phone in python)]
    check_steps(fleet, spec, TINY, [report.model_id for report in reports], sent)
