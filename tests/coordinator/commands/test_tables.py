"""What people read: at 80 columns and at 40 ids are whole, nothing is cut, and what is left out is named."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from coordinator.commands.devices import device_table
from coordinator.commands.measured import table_of
from coordinator.commands.models.standings import in_short, model_table
from coordinator.commands.tables import Column, facts, found, listing
from coordinator.commands.tasks import task_table
from coordinator.operator.registrar_client import Device
from mien.format import cut
from mien.protocol.v1 import models_pb2, operator_pb2

DEVICE = Device(
    device_id="3f0c" * 8,
    population="default",
    note="Alice's [old] phone [/]",
    joined_unix_s=1_760_000_000,
    certificate_expires_unix_s=1_761_000_000,
    revoked=False,
)
MODEL = models_pb2.ModelManifest(model_id="ab" * 32, created_unix_s=1_760_000_000)
STATUS = operator_pb2.ModelStatus(model_id="ab" * 32, state="released", share=0.1)
TASK = operator_pb2.TaskStatus(
    task_id="5e88" * 4,
    name="spring-" * 8,
    state="paused",
    reason="5 attempts in a row were aborted, the last because too few devices were left; mend that, then task resume",
    rounds_closed=3,
    rounds_total=20,
    method="fedface",
    model_id="cd" * 32,
    task_json=b'{"population":"evening"}',
)


def drawn(content: RenderableType, width: int) -> str:
    """Return what a terminal of that width shows."""
    console = Console(file=io.StringIO(), width=width)
    console.print(content)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    return text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_devices(width: int) -> None:
    text = drawn(device_table([DEVICE], width), width)
    assert DEVICE.device_id in text
    assert "good" in text
    if width != 80:
        assert "2025-10-20 22:40" in text
    assert ("Alice's [old] phone [/]" in text) or width == 80
    assert ("population" in text) == (width != 80) or "Not shown here: " in text


def test_what_devices_told_is_beside_them() -> None:
    told = operator_pb2.SeenDevice(
        device_id=DEVICE.device_id, engines=["onnxruntime"], backbones=["sface"], last_seen_unix_ms=1_761_000_000_000
    )
    text = drawn(device_table([DEVICE], 200, {DEVICE.device_id: told}), 200)
    assert all(part in text for part in ("good", "onnxruntime", "sface", "2025-10-20 22:40"))
    told.stays_out_since_unix_ms = 1
    assert "stays out" in drawn(device_table([DEVICE], 80, {DEVICE.device_id: told}), 80)
    assert "never" in drawn(device_table([DEVICE], 200, {}), 200)
    assert "labelled" not in text
    told.labelled = True
    assert "labelled faces" in drawn(device_table([DEVICE], 200, {DEVICE.device_id: told}), 200)


def test_at_80_the_note_stays_longest() -> None:
    text = drawn(device_table([DEVICE], 80), 80)
    assert "Alice's" in text
    told = "Not shown here: certificate until, population, joined, attestation; --json has all."
    assert told in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tasks(width: int) -> None:
    text = drawn(task_table([TASK], width), width)
    assert TASK.task_id in text
    assert "3/20" in text
    assert "for evening" in " ".join(text.split())
    joined = "".join(text.split())
    assert "paused:5attempts" in joined if width != 80 else "paused" in joined


@pytest.mark.parametrize("width", [40, 80, 200])
def test_models(width: int) -> None:
    text = drawn(model_table([(MODEL, STATUS)], width), width)
    assert MODEL.model_id[:16] in text
    assert "10%" in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_two_released_models_say_for_whom_and_a_rejected_one_does_not_say_why(width: int) -> None:
    why = "TAR at FMR 0.001 dropped by 0.07, more than 0.01 allows; " * 4
    rejected = operator_pb2.ModelStatus(state="rejected", reason=why, population="default")
    statuses = [
        operator_pb2.ModelStatus(state="released", share=1.0),
        operator_pb2.ModelStatus(state="released", share=1.0, population="default", reason=why),
        rejected,
    ]
    table = model_table([(MODEL, status) for status in statuses], width)
    rows = [[cell.strip() for cell in line.split("│")] for line in drawn(table, width).splitlines()]
    assert [row[2:4] for row in rows if row[1:2] == [MODEL.model_id[:16]]] == [
        ["released", "all others"],
        ["released", "default"],
        ["rejected", "–"],
    ]
    record = {"passed": False, "reasons": [why]}
    assert [in_short(record, why), in_short(record), in_short({"passed": True, "reasons": []})] == [
        *("failed", f"failed: {why}", "passed")
    ]
    assert in_short({"passed": False, "reasons": [why * 2]}, cut(why * 2)) == "failed"


def test_measurements_of_kinds_that_are_not_known_are_shown_as_far_as_they_are_read() -> None:
    assert in_short({"eer": 0.0123, "mated": 5, "non_mated": 7}) == "eer 0.0123, 5 mated, 7 non-mated"
    assert in_short({"accuracy": 0.9, "model_id": "a"}) == "accuracy 0.9000"
    for unknown in ({}, {"points": [1]}, {"eer": "low"}):
        assert "does not know; --json shows it" in in_short(unknown)
    assert in_short({"passed": False}) == "failed"


@pytest.mark.parametrize("width", [40, 80])
def test_findings_are_whole_and_say_brackets_as_they_are(width: int) -> None:
    fingerprint = "0123456789abcdef" * 4
    whole = found("authority", f"fingerprint {fingerprint}", is_fault=False)
    rows = [whole, found("disk", "[/] [bold]", is_fault=True)]
    text = drawn(facts("check", "result", rows), width)
    cells = "".join(line.split("│")[2].strip() for line in text.splitlines() if line.startswith("│"))
    assert fingerprint in cells
    assert "[/] [bold]" in text


def test_columns_go_by_their_rank_and_lines_come_where_no_table_fits() -> None:
    columns = (Column("id"), Column("b", 2), Column("c", 1))
    rows = [("i" * 20, "b" * 20, "c" * 20)]
    assert "c" * 20 in drawn(listing(columns, rows, 60), 60)
    assert "b" * 20 not in drawn(listing(columns, rows, 60), 60)
    assert drawn(listing(columns, rows, 20), 30) == f"{'i' * 20}\n  b: {'b' * 20}\n  c: {'c' * 20}\n"


def test_text_with_a_style_stays_text() -> None:
    assert "[x]" in drawn(facts("a", "b", [("[x]", Text("y"))]), 40)


def record(**changes: Any) -> dict[str, Any]:
    base = {
        "protocol": "folder-all-pairs",
        "protocol_version": "1",
        "dataset": "public",
        "model_id": "ab" * 32,
        "identities": 250,
        "images": 1000,
        "fte": 3,
        "mated": 1500,
        "non_mated": 498_000,
        "eer": 0.01234,
        "points": [
            {"threshold": 0.3125, "fmr": 0.00099, "fnmr": 0.04, "target_fmr": 0.001, "num_mated": 1500},
            {"target_fmr": 0.0001, "not_measurable": "too few comparisons"},
        ],
        "monitors": {"mean_non_mated": 0.0123, "effective_rank": 101.25},
        "commit": "unknown",
    }
    return base | changes


@pytest.mark.parametrize("width", [40, 80])
def test_a_measurement_is_a_table_and_not_data(width: int) -> None:
    text = drawn(table_of(record()), width)
    assert not set("{}'") & set(text)
    joined = " ".join("".join(line.split("│")[2]).strip() for line in text.splitlines() if line.startswith("│"))
    for words in ("498,000", "0.0123", "threshold 0.3125", "TAR 0.9600", "too few", "101.250"):
        assert words in joined


def test_thresholds_that_are_not_kept_are_named_with_the_reason() -> None:
    point = {"threshold": 0.5, "fmr": 0.0001, "fnmr": 0.1, "num_mated": 1500}
    points = [
        {**point, "target_fmr": 0.001, "num_non_mated": 30_000},
        {**point, "target_fmr": 0.0001, "num_non_mated": 258_789},
        {"target_fmr": 1e-6, "not_measurable": "too few comparisons"},
        {**point, "threshold": 1.5, "target_fmr": 0.01, "num_non_mated": 30_000},
    ]
    told = drawn(table_of(record(points=points, thresholds_kept=1)), 400)
    assert (
        " 1; not at FMR 0.0001: that needs 300,000 non-mated comparisons, there were 258,789; not at FMR 1e-06: it is "
        "not measurable; not at FMR 0.01: no score from -1 to 1 is that rare "
    ) in told


def test_a_ten_fold_measurement() -> None:
    fold = {k: v for k, v in record().items() if k not in ("points", "monitors", "eer", "identities", "images")}
    text = drawn(table_of({**fold, "accuracy": 0.9932, "std": 0.004, "standard_error": 0.0013}), 80)
    assert "0.9932" in text
    assert "at FMR" not in text
