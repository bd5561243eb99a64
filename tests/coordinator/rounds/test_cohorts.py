"""Cohorts that overlap inside one engine: gates that hold them, steps that overtake each other, a fault in one."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds.closing import Closed
from coordinator.rounds.cohort import Cohort
from coordinator.rounds.engine import Assigned, Caller
from mien.errors import DiskFullError, LateError, UnavailableError
from mien.protocol.rounds import BlobId, Stage
from mien.protocol.uploads import UploadPiece
from mien.rounds.records import CandidateRecord, CandidateState, RoundRecord, TaskRecord, TaskState
from mien.rounds.verdicts import Verdict
from mien.specs import AsynchronousSpec, GateSpec, ServerSpec
from simulation.testing import contribution
from tests.coordinator.rounds.test_task import Rounds, rounds
from tests.helpers import run

PAIRS = ("ab", "cd", "ef")


@dataclass
class Pair:
    """Two devices that were chosen for one cohort."""

    house: Rounds
    assigned: dict[str, Assigned]

    @classmethod
    async def of(cls, house: Rounds, names: str) -> Pair:
        """Have two devices check in until they are chosen."""

        async def chosen(device: str) -> Assigned:
            while True:
                found = await house.engine.check_in(Caller(device, "p"), limit_s=0.2)
                if isinstance(found, Assigned):
                    return found

        devices = [name * 32 for name in names]
        return cls(house, dict(zip(devices, await asyncio.gather(*map(chosen, devices)), strict=True)))

    async def upload(self) -> None:
        """Train and upload; the cohort is closing then."""
        await asyncio.gather(*(self._upload(device, found) for device, found in self.assigned.items()))

    async def _upload(self, device: str, found: Assigned) -> None:
        await stubbornly(lambda: self.house.engine.report_trained(device, found.name))
        await stubbornly(lambda: self._until_upload(device, found))
        sent = contribution(found.plan.task, found.name.round, int(device, 16))

        async def pieces() -> AsyncIterator[UploadPiece]:
            yield UploadPiece(None, 0, memoryview(sent))

        blob = BlobId(hashlib.sha256(sent).hexdigest(), len(sent))
        receive = self.house.uploads.receive
        await stubbornly(lambda: receive(device, found.name, blob, b"", pieces()))

    async def _until_upload(self, device: str, found: Assigned) -> None:
        async for news in self.house.engine.follow(device, found.name):
            if news.stage is Stage.UPLOAD:
                return


async def stubbornly(call: Any) -> None:
    """Make a call until it is answered, as a phone does."""
    async with asyncio.timeout(60):
        while True:
            try:
                await call()
            except (UnavailableError, DiskFullError, LateError):  # late: the task is being picked up
                await asyncio.sleep(0.05)
            else:
                return


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def closed(house: Rounds, task: TaskRecord) -> list[RoundRecord]:
    """Return the cohorts that made a model, by how stale they were."""
    records = house.stores.store.rounds(task.task_id)
    made = [record for record in records if record.stage is Stage.CLOSED]
    return sorted(made, key=lambda record: record.metrics["staleness"])


def blobs_on_disk(folder: Path) -> set[str]:
    return {path.name for path in (folder / "models").rglob("*") if path.is_file() and len(path.name) == 64}


def test_while_gates_judge_a_model_no_other_follows_it_and_what_was_overtaken_is_taken_again(tmp_path: Path) -> None:
    """Three cohorts on the first model: one makes the second, two wait for the gates with their sums ready."""
    spec, gates = AsynchronousSpec(max_concurrency=3), GateSpec(every=1, release="manual")

    async def verdict(house: Rounds, task: TaskRecord, version: int) -> None:
        await until(lambda: bool(house.engine.checking()))
        candidate = house.stores.store.candidate(task.task_id, CandidateState.WAITING)
        assert candidate is not None
        assert candidate.round == version
        await house.engine.checking()[0].hear(Verdict(candidate))

    async def story() -> None:
        async with rounds(tmp_path, has_gates=True) as house:
            task = await house.submit(rounds=3, asynchronous=spec, gates=gates)
            first, second, third = [await Pair.of(house, names) for names in PAIRS]
            await first.upload()
            await until(lambda: house.task(task.task_id).state is TaskState.CHECKING)
            await asyncio.gather(second.upload(), third.upload())
            await until(lambda: [now.stage for now in house.engine.tasks_now()] == ["closing", "closing"])
            await asyncio.sleep(0.2)
            assert house.task(task.task_id).rounds_closed == 1, "both sums wait"
            assert [now.stage for now in house.engine.tasks_now()] == ["closing", "closing"]
            for version in (1, 2, 3):
                await verdict(house, task, version)
            await until(lambda: house.task(task.task_id).state is TaskState.DONE)
            made = closed(house, task)
            assert [record.metrics["staleness"] for record in made] == [0, 1, 2]
            assert [record.base_version for record in made] == [0, 0, 0]
            models = [house.stores.store.model(record.model_id or "") for record in made]
            assert [model.round for model in models] == [1, 2, 3]
            assert [model.parent_model_id for model in models[1:]] == [model.model_id for model in models[:2]]
            assert blobs_on_disk(tmp_path) == house.stores.store.model_blobs(), "an overtaken step leaves no model"

    run(story())


async def first_of_two_closed(house: Rounds, *, num_rounds: int) -> tuple[TaskRecord, Pair]:
    """Return a task whose models are judged by hand, and its second cohort: the first one's sum is closing."""
    spec, gates = AsynchronousSpec(max_concurrency=2), GateSpec(every=1, release="manual")
    task = await house.submit(rounds=num_rounds, asynchronous=spec, gates=gates)
    first, second = [await Pair.of(house, names) for names in PAIRS[:2]]
    await first.upload()
    return task, second


@pytest.mark.parametrize("pause", ["operator", "problem", "restart"])
def test_while_a_candidate_waits_no_other_follows_it_also_where_the_task_is_paused(tmp_path: Path, pause: str) -> None:
    """The gates judge the first cohort's model, or cannot; the second's sum is ready in the meantime."""

    async def waiting(house: Rounds, task: TaskRecord, version: int) -> CandidateRecord:
        await until(lambda: house.stores.store.candidate(task.task_id, CandidateState.WAITING) is not None)
        candidate = house.stores.store.candidate(task.task_id, CandidateState.WAITING)
        assert candidate is not None
        assert candidate.round == version
        return candidate

    async def story() -> None:
        async with rounds(tmp_path, has_gates=True) as house:
            task, second = await first_of_two_closed(house, num_rounds=2)
            candidate = await waiting(house, task, 1)
            if pause == "problem":
                await until(lambda: bool(house.engine.checking()))
                await house.engine.checking()[0].hear(Verdict(candidate, problem="no folder"))
            else:
                await house.engine.command(task.task_id, TaskState.PAUSED, actor="alice")
            assert house.task(task.task_id).state is TaskState.PAUSED
            if pause == "restart":
                await house.engine.let_go("p")
                await house.engine.take_over("p")
            await second.upload()
            await asyncio.sleep(0.3)
            assert house.task(task.task_id).rounds_closed == 1, "the sum waits"
            await house.engine.command(task.task_id, TaskState.RUNNING, actor="alice")
            assert house.task(task.task_id).state is TaskState.CHECKING
            await house.engine.checking()[0].hear(Verdict(await waiting(house, task, 1)))
            candidate = await waiting(house, task, 2)
            await until(lambda: bool(house.engine.checking()))
            await house.engine.checking()[0].hear(Verdict(candidate))
            await until(lambda: house.task(task.task_id).state is TaskState.DONE)
            assert [record.metrics["staleness"] for record in closed(house, task)] == [0, 1]

    run(story())


def test_a_verdict_that_comes_while_the_task_is_paused_lets_the_next_step_through(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path, has_gates=True) as house:
            task, second = await first_of_two_closed(house, num_rounds=3)
            await until(lambda: bool(house.engine.checking()))
            judged = house.engine.checking()[0]
            candidate = house.stores.store.candidate(task.task_id, CandidateState.WAITING)
            assert candidate is not None
            await house.engine.command(task.task_id, TaskState.PAUSED, actor="alice")
            await second.upload()
            await asyncio.sleep(0.1)
            assert house.task(task.task_id).rounds_closed == 1, "the sum waits"
            await judged.hear(Verdict(candidate))
            await until(lambda: house.task(task.task_id).rounds_closed == 2)
            assert house.task(task.task_id).state is TaskState.PAUSED
            await house.engine.command(task.task_id, TaskState.CANCELLED, actor="alice")
            await until(lambda: not house.engine.tasks_now())

    run(story())


def test_a_cancelled_task_does_not_wait_for_a_verdict(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path, has_gates=True) as house:
            task, second = await first_of_two_closed(house, num_rounds=3)
            await until(lambda: bool(house.engine.checking()))
            await house.engine.command(task.task_id, TaskState.PAUSED, actor="alice")
            await second.upload()
            await house.engine.command(task.task_id, TaskState.CANCELLED, actor="alice")
            await until(lambda: not house.stores.store.open_rounds(task.task_id) and not house.engine.tasks_now())
            assert house.task(task.task_id).rounds_closed == 1

    run(story())


def states_on_disk(folder: Path) -> set[str]:
    return {path.name for path in (folder / "states").rglob("*") if path.is_file() and len(path.name) == 64}


class SlowTurns:
    """Lets cohorts commit a step that they have taken only once the test says so; all else goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready: dict[int, asyncio.Event] = {}
        self.taken: list[tuple[int, Closed]] = []
        handle = Cohort._handle

        async def slowly(cohort: Cohort, messages: Sequence[Any]) -> None:
            for message in messages:
                if isinstance(message.closed, Closed):
                    self.taken.append((message.attempt.record.id, message.closed))
                    self.ready[message.attempt.record.id] = asyncio.Event()
                    await self.ready[message.attempt.record.id].wait()
            await handle(cohort, messages)

        monkeypatch.setattr(Cohort, "_handle", slowly)

    def steps_of(self, cohort: RoundRecord) -> list[Closed]:
        """Return the steps that a cohort has taken so far."""
        return [step for round_id, step in self.taken if round_id == cohort.id]

    async def release(self, cohort: RoundRecord) -> None:
        """Let a cohort go on with the step that it has taken, once it has."""
        await until(lambda: cohort.id in self.ready)
        self.ready.pop(cohort.id).set()


def test_no_cohort_deletes_what_a_step_of_another_is_about_to_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third cohort's step on the newest model is laid down, not committed, while the second's is overtaken."""
    spec, turns = AsynchronousSpec(max_concurrency=3), SlowTurns(monkeypatch)

    async def story() -> None:
        async with rounds(tmp_path) as house:
            server = ServerSpec(momentum=0.9)
            task = await house.submit(rounds=4, asynchronous=spec, server=server)
            pairs = [await Pair.of(house, names) for names in PAIRS]
            first, second, third = house.stores.store.open_rounds(task.task_id)
            await asyncio.gather(pairs[0].upload(), pairs[1].upload())
            await until(lambda: len(turns.taken) == 2)
            await turns.release(first)
            await until(lambda: house.task(task.task_id).rounds_closed == 1)
            await pairs[2].upload()
            await until(lambda: len(turns.taken) == 3)
            await turns.release(second)
            await until(lambda: len(turns.taken) == 4)  # taken again, on the same model as the third's
            (overtaken, again), (ready,) = turns.steps_of(second), turns.steps_of(third)
            assert overtaken.state.rounds == 1
            assert ready.state.rounds == again.state.rounds == 2
            assert not overtaken.state_blobs & states_on_disk(tmp_path)
            assert ready.state_blobs <= states_on_disk(tmp_path)
            assert ready.model_blobs <= blobs_on_disk(tmp_path)
            await turns.release(third)
            await until(lambda: house.task(task.task_id).rounds_closed == 2)
            assert house.task(task.task_id).arrays_sha256 == ready.arrays_sha256
            await turns.release(second)
            await until(lambda: len(turns.taken) == 5)
            assert house.task(task.task_id).state_blobs <= states_on_disk(tmp_path)
            await turns.release(second)
            await until(lambda: house.task(task.task_id).rounds_closed == 3)
            await until(lambda: states_on_disk(tmp_path) == house.task(task.task_id).state_blobs)
            assert house.task(task.task_id).state_blobs
            await until(lambda: blobs_on_disk(tmp_path) == house.stores.store.model_blobs())
            await house.engine.command(task.task_id, TaskState.CANCELLED, actor="alice")
            await until(lambda: not states_on_disk(tmp_path))

    run(story())


@pytest.mark.parametrize("error", [DiskFullError("no space left"), RuntimeError("a defect")], ids=["disk", "defect"])
def test_a_fault_in_one_cohort_costs_none_its_sum(tmp_path: Path, error: Exception) -> None:
    """The transition after an upload fails: what the disk refuses is tried again, a defect has all picked up."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=2, asynchronous=AsynchronousSpec(max_concurrency=2))
            slow, quick = await Pair.of(house, PAIRS[0]), await Pair.of(house, PAIRS[1])
            house.faults.waiting["save_round"] = [error]
            await asyncio.gather(quick.upload(), slow.upload())
            await until(lambda: house.task(task.task_id).state is TaskState.DONE)
            assert [record.metrics["staleness"] for record in closed(house, task)] == [0, 1]

    run(story())


def test_a_cancelled_task_leaves_no_cohort_open(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=3, asynchronous=AsynchronousSpec(max_concurrency=2))
            pairs = [await Pair.of(house, names) for names in PAIRS[:2]]
            await house.engine.command(task.task_id, TaskState.CANCELLED, actor="alice")
            await until(lambda: not house.stores.store.open_rounds(task.task_id))
            for pair in pairs:
                device, found = next(iter(pair.assigned.items()))
                news = [each async for each in house.engine.follow(device, found.name)]
                assert (news[-1].stage, news[-1].reason) == (Stage.ABORTED, "task cancelled by alice")
            with pytest.raises(LateError):
                await house.engine.report_trained("a" * 32, pairs[0].assigned["a" * 32].name)

    run(story())
