"""What is counted, read back from the text that Prometheus would be given."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from coordinator.rounds.engine import TaskNow
from coordinator.service.metrics import Metrics, Now
from coordinator.store.report import BudgetNow
from mien.evaluation.rollout_spec import RollOutSpec
from mien.protocol.rounds import Stage
from mien.rounds.records import RoundRecord
from mien.rounds.rollouts import RollOutRecord, RollOutState, spec_to_json


class SetClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


ROUND = RoundRecord(7, "t1", 1, 1, Stage.SELECTING, None, "a" * 64, 0)


def told(metrics: Metrics, now: Now = Now()) -> dict[str, float]:  # noqa: B008 - frozen
    text = metrics.exposition(now).decode()
    families = text_string_to_metric_families(text)
    return {
        s.name + "".join(f" {v}" for _, v in sorted(s.labels.items())): s.value for f in families for s in f.samples
    }


def test_stages_are_timed_and_ends_are_counted() -> None:
    clock = SetClock()
    metrics = Metrics("test", clock)
    metrics.round_moved("p", None, ROUND, 0)
    clock.now += 3
    training = replace(ROUND, stage=Stage.TRAINING)
    metrics.round_moved("p", ROUND, training, 0)
    clock.now += 40
    metrics.round_moved("p", training, replace(training, num_trained=1), 0)  # the same stage goes on
    upload = replace(training, stage=Stage.UPLOAD)
    metrics.round_moved("p", training, upload, 0)
    counted = replace(upload, upload_bytes=800)
    metrics.round_moved("p", upload, counted, 2)
    metrics.round_moved("p", counted, replace(counted, stage=Stage.ABORTED), 0)
    samples = told(metrics)
    assert samples["mien_stage_seconds_sum selecting"] == 3
    assert samples["mien_stage_seconds_sum training"] == 40
    assert samples["mien_rounds_total aborted p"] == 1
    assert (samples["mien_uploads_total"], samples["mien_upload_bytes_total"]) == (2, 800)


def test_a_stage_that_began_before_the_program_is_not_timed() -> None:
    metrics = Metrics("test", SetClock())
    metrics.round_moved("p", replace(ROUND, stage=Stage.UPLOAD), replace(ROUND, stage=Stage.CLOSED), 0)
    samples = told(metrics)
    assert samples["mien_rounds_total closed p"] == 1
    assert not any(name.startswith("mien_stage_seconds_count") for name in samples)


def test_calls_by_method_and_reason() -> None:
    metrics = Metrics("test")
    metrics.call_ended("/mien.v1.Rounds/CheckIn")
    metrics.call_ended("/mien.v1.Rounds/CheckIn", "revoked")
    samples = told(metrics)
    assert samples["mien_calls_total Rounds/CheckIn"] == 1
    assert samples["mien_refused_calls_total Rounds/CheckIn revoked"] == 1


def test_cohorts_in_flight_are_added_up() -> None:
    """A label set may occur once: two cohorts of a task that are at the same stage are one sample of 2."""
    upload = TaskNow("spring", "p", "upload", {"trained": 3, "uploaded": 1}, 2)
    samples = told(Metrics("test"), Now(tasks=(upload, replace(upload, queue_length=1), replace(upload, stage="keys"))))
    assert samples["mien_task_stage p upload spring"] == 2
    assert samples["mien_task_stage p keys spring"] == 1
    assert samples["mien_round_devices p trained spring"] == 9
    assert samples["mien_task_queue p spring"] == 5


def test_what_is_over_leaves_no_gauge_behind() -> None:
    metrics = Metrics("test")
    now = Now(
        is_draining=True,
        tasks=(TaskNow("spring", "p", "training", {"selected": 3}, 2),),
        budgets=(BudgetNow("p", 1e-5, 8.0, 2.5),),
    )
    samples = told(metrics, now)
    assert samples["mien_draining"] == 1
    assert samples["mien_round_devices p selected spring"] == 3
    assert samples["mien_task_queue p spring"] == 2
    assert samples["mien_privacy_epsilon_spent 1e-05 p"] == 2.5
    assert not any("spring" in name for name in told(metrics))


def test_a_roll_out_and_what_phones_say_of_it() -> None:
    figures = {"phones": 16.0, "tar": 0.97, "fmr": 0.001, "tar_drop": -0.002, "effective_dimension": 40.0}
    under_way = RollOutRecord(
        *(3, "b" * 64, "a" * 64, "p", spec_to_json(RollOutSpec()), RollOutState.EVALUATING, 1, 1, 5, "alice", 5),
        figures=figures,
    )
    fresh = replace(under_way, population="q", figures={})
    samples = told(Metrics("test", SetClock()), Now(roll_outs=(under_way, fresh)))
    assert samples["mien_roll_out_share bbbbbbbbbbbb p evaluating"] == 0.1
    for name, value in figures.items():
        assert samples[f"mien_fleet_{name} bbbbbbbbbbbb p"] == value
        assert f"mien_fleet_{name} bbbbbbbbbbbb q" not in samples
