"""The account that chaos keeps can tell: a lost upload, a wrong total and a contradiction are each found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.store.blobs import BlobStore
from coordinator.store.store import Store
from mien.rounds.machine import Step
from mien.specs import CohortSpec
from simulation.testing import FakeFleet, Sent, ref_of, tiny_task
from tests.chaos import ledger
from tests.chaos.ledger import Attempt, Auditor, Ledger, true_contribution
from tests.helpers import run

DEVICES = 2


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[FakeFleet, str, list[Sent]]:
    """A coordinator that has closed two rounds and stopped, and what it acknowledged."""
    folder = tmp_path_factory.mktemp("fleet")
    fleet = FakeFleet(folder)
    task = tiny_task("told", "told", rounds=2, cohort=CohortSpec(DEVICES, DEVICES))

    async def story() -> tuple[str, list[Sent]]:
        async with fleet.operator() as operator, fleet.devices("told", DEVICES) as devices:
            await fleet.release_tiny_model(operator)
            task_id = (await operator.submit(task, "told")).task_id
            sent = []
            for _ in range(task.rounds):
                sent += await asyncio.gather(
                    *(
                        device.take_part(
                            lambda task, assignment, name=device.id: true_contribution(
                                task, name, Attempt(task_id, *ref_of(assignment))
                            )
                        )
                        for device in devices
                    )
                )
                await devices[0].until(devices_ref(task_id, sent[-1]))
            return task_id, sent

    try:
        fleet.start()
        task_id, sent = run(story())
        assert fleet.stop() == 0
    finally:
        fleet.close()
    return fleet, task_id, sent


def devices_ref(task_id: str, sent: Sent) -> Any:
    from mien.protocol.v1 import rounds_pb2

    return rounds_pb2.RoundRef(task_id=task_id, round=sent.round[0], attempt=sent.round[1])


def audited(history: tuple[FakeFleet, str, list[Sent]], change: Callable[[Ledger], None]) -> Auditor:
    """Return an auditor that has compared the history with the devices' true account, changed by a test."""
    fleet, task_id, sent = history
    account = Ledger()
    for each in sent:
        account.acknowledge(Attempt(task_id, *each.round), each.device_id)
        account.ended(Attempt(task_id, *each.round), each.device_id, "closed")
    change(account)
    auditor = Auditor(account)
    with fleet.store() as store:
        auditor.follow(store, task_id)
        auditor.check_end(store, models(fleet))
    return auditor


def models(fleet: FakeFleet) -> BlobStore:
    return fleet.home.blobs(fleet.home.resolve().config, "models")


def test_a_true_account_agrees(history: tuple[FakeFleet, str, list[Sent]]) -> None:
    auditor = audited(history, lambda _account: None)
    assert (auditor.lost, auditor.wrong) == ([], [])
    assert auditor.num_closed["told"] == 2


def test_an_acknowledged_upload_that_is_in_no_sum_is_lost(history: tuple[FakeFleet, str, list[Sent]]) -> None:
    auditor = audited(history, lambda account: account.acknowledge(Attempt(history[1], 1, 1), "f" * 32))
    assert any("is not in the sum" in text for text in auditor.lost)
    assert any("never heard" in text for text in auditor.lost)


def test_a_device_that_was_told_otherwise_is_found(history: tuple[FakeFleet, str, list[Sent]]) -> None:
    device = history[2][0].device_id

    def lie(account: Ledger) -> None:
        account.ended(Attempt(history[1], 2, 1), device, "aborted")

    assert any("told closed first and aborted later" in text for text in audited(history, lie).wrong)


def test_another_total_is_found(history: tuple[FakeFleet, str, list[Sent]], monkeypatch: pytest.MonkeyPatch) -> None:
    """One device has sent something else in the second round than the sum holds."""
    victim = history[2][0].device_id

    def other(task: Any, device_id: str, attempt: Attempt) -> bytes:
        if device_id == victim and attempt.round == 2:
            attempt = attempt._replace(attempt=2)
        return true_contribution(task, device_id, attempt)

    monkeypatch.setattr(ledger, "true_contribution", other)
    auditor = audited(history, lambda _account: None)
    (text,) = auditor.wrong
    assert "round=2" in text
    assert "the model is off by" in text


def test_a_member_whose_part_was_dropped_from_the_store_is_lost(
    history: tuple[FakeFleet, str, list[Sent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Store.participants

    def forgetful(store: Store, round_id: int) -> dict[str, Step]:
        return {**true(store, round_id), history[2][0].device_id: Step.LATE}

    monkeypatch.setattr(Store, "participants", forgetful)
    auditor = audited(history, lambda _account: None)
    assert len([text for text in auditor.lost if "is not in the sum (late)" in text]) == 2
    assert auditor.wrong
