"""Phones over the real protocol: join, enrol, verify, take part; killed, refused, late, offline."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from device_sdk.device import Device
from device_sdk.models.models import Model
from device_sdk.models.packaged import packaged_model
from device_sdk.people.verify import Match
from device_sdk.rounds.conditions import StatedConditions
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, NotCounted, RoundOutcome
from device_sdk.runtimes import load_embedder
from mien.contribution import ContributionLayout
from mien.errors import (
    TABLE,
    AlreadyExistsError,
    ConfigError,
    DiskFullError,
    InviteError,
    MissingDependencyError,
    RevokedError,
    UnreachableError,
)
from mien.methods import METHODS
from mien.methods.base import Runtime
from mien.protocol.invite import Invite
from mien.shell.lock import exclusive
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec, Threshold
from tests.device_sdk.programs import has_died, mien_device, start_mien_device
from tests.device_sdk.synthetic import DECIDES_AT, OWNER, STRANGER, images_of, sface
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, small_model, with_model

PLAIN_CLEAR = PrivacySpec(("class_embeddings",), min_cohort=2, secure_aggregation="off")
AGREED = ("--min-cohort", "2", "--allow-plain-sums")
DEADLINES = DeadlineSpec(selecting_s=150.0, training_s=150.0, upload_s=150.0)


def task(name: str, *, size: int = 2, rounds: int = 1, **changes: object) -> TaskSpec:
    """Return a task with plain sums, to which the phones of these tests have agreed."""
    values: dict[str, object] = {
        "method": "fedavg",
        "rounds": rounds,
        "population": name,
        "cohort": CohortSpec(size=size, min_reports=2),
        "deadlines": DEADLINES,
        "local": LocalSpec(lr=0.05, flip=False),
        # Embeddings of random weights are all alike: only the largest margin leaves something to train.
        "options": {"margin": 1.0},
        "privacy": PrivacySpec(min_cohort=2, secure_aggregation="off"),
    }
    return TaskSpec(name, **{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("fleet")) as running:
        running.release(small_model())
        yield running


class Companion:
    """A phone that lives in a thread of this process and takes part until it has been counted."""

    def __init__(
        self,
        fleet: RealFleet,
        name: str,
        population: str,
        identity: str,
        *,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.contributions: list[bytes] = []
        self._device: Device | None = None
        executor = ThreadPoolExecutor(1)
        self._outcomes = executor.submit(self._run, fleet, name, population, identity, options)
        executor.shutdown(wait=False)

    def _run(
        self, fleet: RealFleet, name: str, population: str, identity: str, options: Mapping[str, object]
    ) -> list[RoundOutcome]:
        with fleet.phone(name, population, identity, tell=self._tell, **options) as self._device:
            return list(self._device.participate(rounds=1))

    def _tell(self, event: Event | Transfer) -> None:
        if isinstance(event, Event) and event.kind == "uploading":
            assert self._device is not None
            pending = self._device.gallery.pending()
            assert pending is not None
            self.contributions.append(pending.contribution)

    def join(self) -> list[RoundOutcome]:
        """Return the outcomes once the phone is done; raises what it raised."""
        return self._outcomes.result(240)


def expected_theta(layout: ContributionLayout, spec: TaskSpec, uploads: list[bytes]) -> np.ndarray:
    """Return theta + sum(w delta) / sum(w), computed from scratch in float64."""
    model = small_model()
    part = model.layout.part(spec.trainable or model.spec.trainable)
    vectors = [np.frombuffer(data, "<f4").astype(np.float64) for data in uploads]
    weight = sum(float(vector[layout.slices["weight"]][0]) for vector in vectors)
    delta = np.sum([vector[layout.slices["delta"]] for vector in vectors], axis=0) / weight
    return part.scatter(model.theta, (part.gather(model.theta) + delta).astype(np.float32))


# --- the whole story, by commands ---


def test_join_enrol_verify_over_the_command_line(fleet: RealFleet, tmp_path: Path) -> None:
    home = tmp_path / "phone"
    fleet.release(sface())
    try:
        invite = fleet.invite("story")
        joined = mien_device("join", invite, "--home", home, "--keystore", "file", "--json")
        assert joined.returncode == 0, joined.stderr
        told = json.loads(joined.stdout)
        assert (told["population"], told["code"]) == ("story", Invite.from_url(invite).code())

        folder = tmp_path / "owner"
        folder.mkdir()
        for image in images_of(OWNER)[:4]:
            (folder / image.name).write_bytes(image.read_bytes())
        (folder / "broken.jpg").write_bytes(b"no picture")
        enrolled = mien_device("enroll", "Ada", folder, "--consent", "--home", home, "--json")
        assert enrolled.returncode == 0, enrolled.stderr
        result = json.loads(enrolled.stdout.splitlines()[-1])
        assert (result["images_used"], result["trains"]) == (4, True)
        assert [image["name"] for image in result["refused"]] == [str(folder / "broken.jpg")]

        # Works without any server from here on.
        fleet.coordinator.stop()
        own = mien_device("verify", "Ada", images_of(OWNER)[6], "--home", home)
        assert (own.returncode, own.stdout) == (0, "Match: Ada.\n"), own.stderr
        other = mien_device("verify", "Ada", images_of(STRANGER)[6], "--home", home, "--json", "--show-score")
        assert other.returncode == 1
        decided = json.loads(other.stdout)
        assert decided["decision"] == "unknown"
        assert -1 <= decided["score"] < decided["threshold"] == DECIDES_AT
        found = mien_device("identify", images_of(OWNER)[7], "--home", home, "--json")
        assert json.loads(found.stdout) == {"decision": "match", "name": "Ada", "threshold": DECIDES_AT, "fpir": 0.001}
        assert "%" not in own.stdout + other.stdout

        listed = mien_device("gallery", "list", "--home", home, "--json")
        assert json.loads(listed.stdout)["people"][0]["images"] == 4
        offline = mien_device("update", "--home", home)
        assert offline.returncode == TABLE[UnreachableError].exit_code
        assert "Traceback" not in offline.stderr
    finally:
        fleet.coordinator.close()
        fleet.coordinator.start()
        fleet.release(small_model())


# --- rounds ---


def test_a_rounds_model_is_the_weighted_mean_of_the_phones_updates(fleet: RealFleet) -> None:
    spec = task("mean", size=3)
    task_id = fleet.submit(spec)
    phones = [Companion(fleet, f"mean{i}", "mean", identity) for i, identity in enumerate(IDENTITIES[:3])]
    outcomes = [phone.join() for phone in phones]
    (report,) = fleet.outcome(task_id)
    assert all(outcome == [Counted(outcome[0].round, report.model_id, 3)] for outcome in outcomes)
    part = small_model().layout.part(small_model().spec.trainable)
    layout = METHODS["fedavg"].contribution_layout(spec, part, 128)
    uploads = [phone.contributions[0] for phone in phones]
    assert len(set(uploads)) == 3
    theta = fleet.theta(report.model_id)
    assert not np.array_equal(theta, small_model().theta)
    np.testing.assert_allclose(theta, expected_theta(layout, spec, uploads), atol=1e-6)


@pytest.mark.slow
def test_separate_processes_train_together_and_keep_their_state(fleet: RealFleet) -> None:
    task_id = fleet.submit(task("processes", rounds=2))
    for i in range(2):
        fleet.phone(f"process{i}", "processes", IDENTITIES[i]).close()
    running = [
        start_mien_device("participate", "--rounds", "2", *AGREED, "--home", fleet.folder / f"process{i}", "--json")
        for i in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert len(fleet.outcome(task_id)) == 2
    for i, output in enumerate(outputs):
        events = [json.loads(line) for line in output.splitlines()]
        kinds = [event["event"] for event in events]
        assert kinds.count("counted") == 2
        assert kinds[-1] == "done"
        # What leaves is said before training, and the phone is told that sums are plain.
        assert kinds.index("disclosure") < kinds.index("training") < kinds.index("uploading")
        assert any("are not masked" in event.get("text", "") for event in events)
        with fleet.open(f"process{i}") as device:
            (owner,) = device.people()
            state = device.gallery.private_state(owner.id, task_id)
            assert state["class_embedding"].shape == (128,)
            assert device.gallery.pending() is None


STAGES = ["assigned", "training", "trained", "uploading", "uploaded"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_phone_killed_at_any_stage_goes_on_after_a_restart(fleet: RealFleet, stage: str) -> None:
    population = f"killed-{stage}"
    task_id = fleet.submit(task(population, size=2))
    home = fleet.folder / population
    fleet.phone(population, population, IDENTITIES[0]).close()
    companion = Companion(fleet, f"{population}-friend", population, IDENTITIES[1])
    command = ("participate", "--rounds", "1", *AGREED, "--home", home, "--json")
    assert has_died(start_mien_device(*command, dies_at=stage))

    again = mien_device(*command)
    assert again.returncode == 0, again.stderr
    (report,) = fleet.outcome(task_id)
    assert report.num_reports == 2
    assert isinstance(companion.join()[0], Counted)
    with fleet.open(population) as device:
        assert device.gallery.pending() is None
        assert device.gallery.private_state(device.people()[0].id, task_id)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["training", "uploading"])
def test_without_the_killed_phone_the_round_aborts_and_nothing_is_half_changed(fleet: RealFleet, stage: str) -> None:
    population = f"gone-{stage}"
    # Whoever is left has to be through with the stage that the killed one does not answer in.
    short = {"training": {"training_s": 30.0}, "uploading": {"upload_s": 15.0}}[stage]
    deadlines = replace(DEADLINES, **short)
    task_id = fleet.submit(task(population, deadlines=deadlines))
    home = fleet.folder / f"{population}-victim"
    with (
        fleet.phone(population, population, IDENTITIES[0]) as device,
        fleet.phone(f"{population}-victim", population, IDENTITIES[1]),
    ):
        victim = start_mien_device("participate", *AGREED, "--home", home, "--json", dies_at=stage)
        waits = ThreadPoolExecutor(1).submit(has_died, victim)
        aborted = next(outcome for outcome in device.participate() if isinstance(outcome, NotCounted) and waits.done())
        assert waits.result()
        assert aborted.code == "aborted"
        assert "2 are needed" in aborted.reason
        assert device.gallery.pending() is None
        assert device.gallery.private_state(device.people()[0].id, task_id) == {}
        # The next attempt goes through with the killed phone back.
        back = start_mien_device("participate", "--rounds", "1", *AGREED, "--home", home)
        assert any(isinstance(outcome, Counted) for outcome in device.participate(rounds=1))
        output, _ = back.communicate(timeout=240)
        assert back.returncode == 0, output
    reports = fleet.outcome(task_id)
    assert reports[-1].num_reports == 2


def _kinds(into: list[str]) -> Callable[[Event | Transfer], None]:
    return lambda event: into.append(event.kind) if isinstance(event, Event) else None


@pytest.mark.slow
def test_a_coordinator_killed_in_mid_round_is_waited_for(tmp_path: Path) -> None:
    with real_fleet(tmp_path) as fleet:
        fleet.release(small_model())
        task_id = fleet.submit(task("restart", size=2))
        first = Companion(fleet, "restart0", "restart", IDENTITIES[0])
        second = Companion(fleet, "restart1", "restart", IDENTITIES[1])
        _wait_until(lambda: len(first.contributions) + len(second.contributions) > 0 or _stage_is(fleet, "training"))
        fleet.coordinator.kill()
        time.sleep(0.5)
        fleet.coordinator.start()
        assert isinstance(first.join()[-1], Counted)
        assert isinstance(second.join()[-1], Counted)
        assert fleet.outcome(task_id)[-1].num_reports == 2


def _stage_is(fleet: RealFleet, stage: str) -> bool:
    with fleet.coordinator.store() as store:
        return any(
            store.last_round(row.task_id) is not None and str(store.last_round(row.task_id).stage) == stage
            for row in store.tasks()
        )


def _wait_until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


# --- what a device refuses ---


@pytest.mark.slow
def test_a_phone_is_not_asked_for_a_task_below_its_floor_and_is_told_why(fleet: RealFleet) -> None:
    fleet.submit(task("floor"))
    fleet.phone("floor0", "floor", IDENTITIES[0]).close()
    waited = mien_device("participate", "--until-idle", "--allow-plain-sums", "--home", fleet.folder / "floor0")
    assert waited.returncode == 0
    assert "16 or more" in waited.stdout + waited.stderr
    assert "--min-cohort" in waited.stdout + waited.stderr


@pytest.mark.slow
def test_class_embeddings_are_shown_only_with_the_owners_word(fleet: RealFleet) -> None:
    spec = task("clear", method="fedface", rounds=2, privacy=PLAIN_CLEAR)
    task_id = fleet.submit(spec)
    said: list[str] = []

    def listen(event: Event | Transfer) -> None:
        if isinstance(event, Event) and event.kind == "disclosure":
            said.append(event.text)

    allowed = {"participation.allow_reveal": ("class_embeddings",)}
    with (
        fleet.phone("clear0", "clear", IDENTITIES[0], tell=listen) as refuses,
        fleet.phone("clear1", "clear", IDENTITIES[1]) as other,
    ):
        thread = threading.Thread(target=lambda: _swallow(other))
        thread.start()
        with pytest.raises(ConfigError, match=r'allow_reveal = \["class_embeddings"\]'):
            list(refuses.participate(rounds=1))
        thread.join()
    assert said == []
    results: list[list[RoundOutcome]] = []

    def agree(name: str) -> None:
        with fleet.open(name, tell=listen, **allowed) as device:
            results.append(list(device.participate(rounds=2)))

    threads = [threading.Thread(target=agree, args=(name,)) for name in ("clear0", "clear1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len([one for one in result if isinstance(one, Counted)]) for result in results] == [2, 2]
    assert any("a template of their face" in text for text in said)
    assert fleet.outcome(task_id)[-1].num_reports == 2


def _swallow(device: Device) -> None:
    with contextlib.suppress(ConfigError):
        list(device.participate(rounds=1))


def test_a_phone_that_may_not_work_now_does_not(fleet: RealFleet) -> None:
    events: list[str] = []
    with fleet.phone("busy", "busy", IDENTITIES[0], tell=_kinds(events)) as device:
        conditions = StatedConditions(charging=False, unmetered=False)
        assert list(device.participate(rounds=1, conditions=conditions)) == []
    assert events[-1] == "not_now"


def test_nobody_who_agreed_means_no_training(fleet: RealFleet) -> None:
    with fleet.open("silent") as device:
        device.join(fleet.invite("silent"))
        device.enroll("Owner", images_of(IDENTITIES[0])[:5], consent=False)
        with pytest.raises(ConfigError, match=r"Device\.set_consent\(\)"):
            list(device.participate(rounds=1))


def test_an_idle_fleet_ends_the_program(fleet: RealFleet) -> None:
    fleet.phone("idle", "idle", IDENTITIES[0]).close()
    ended = mien_device("participate", "--until-idle", "--idle-s", "1", "--home", fleet.folder / "idle", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {"event": "done", "rounds": 0, "counted": 0}


def test_a_device_that_has_not_joined_says_so(tmp_path: Path) -> None:
    ended = mien_device("participate", "--home", tmp_path / "new")
    assert ended.returncode == TABLE[InviteError].exit_code
    assert "mien-device join" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_revoked_device_is_told(fleet: RealFleet) -> None:
    with fleet.phone("revoked", "revoked", IDENTITIES[0]) as device:
        fleet.revoke(device.identity.device_id)
        end = time.monotonic() + 60
        while True:
            try:
                with device.connect() as client:
                    client.manifest()
            except RevokedError:
                break
            assert time.monotonic() < end, "the revocation did not arrive"
            time.sleep(0.2)
    ended = mien_device("participate", "--rounds", "1", "--home", fleet.folder / "revoked")
    assert ended.returncode == TABLE[RevokedError].exit_code
    assert "ask the operator" in ended.stderr


@pytest.mark.slow
def test_a_full_disk_in_training_leaves_the_round_and_keeps_the_state(fleet: RealFleet) -> None:
    task_id = fleet.submit(task("full", size=2))
    home = fleet.folder / "full0"
    fleet.phone("full0", "full", IDENTITIES[0]).close()
    companion = Companion(fleet, "full1", "full", IDENTITIES[1])
    size = (home / "device.db").stat().st_size
    ended = mien_device("participate", "--rounds", "1", *AGREED, "--home", home, largest_file=size + 20_000)
    assert ended.returncode == TABLE[DiskFullError].exit_code, ended.stderr
    with fleet.open("full0") as device:
        assert device.gallery.pending() is None
        assert device.people()[0].num_images == 5
        # With room again the round is tried again and counts.
        assert any(isinstance(outcome, Counted) for outcome in device.participate(rounds=1))
    assert any(isinstance(outcome, Counted) for outcome in companion.join())
    assert fleet.outcome(task_id)[-1].num_reports == 2


# --- models ---


def test_a_released_model_is_taken_over_in_one_switch(fleet: RealFleet) -> None:
    newer = with_model(small_model(), (small_model().theta * np.float32(1.01)).astype(np.float32))
    with fleet.phone("switch", "switch", IDENTITIES[0]) as device:
        before = device.gallery.references(small_model().model_id).embeddings
        fleet.release(newer)
        try:
            update = device.update()
        finally:
            fleet.release(small_model())
        assert (update.model_id, update.changed, update.num_templates) == (newer.model_id, True, 1)
        assert device.gallery.model_id == newer.model_id
        assert not np.allclose(device.gallery.references(newer.model_id).embeddings, before)
        assert not device.models.has(small_model().model_id)
        assert device.update().model_id == small_model().model_id
        assert not device.update().changed


def test_a_threshold_measured_after_the_release_reaches_the_phone(fleet: RealFleet) -> None:
    model = with_model(small_model(), (small_model().theta * np.float32(0.99)).astype(np.float32))
    fleet.release(model)
    try:
        with fleet.phone("later", "later", IDENTITIES[0]) as device:
            with pytest.raises(ConfigError, match="measure this model's thresholds"):
                device.verify("Owner", images_of(IDENTITIES[0])[6])
            fleet.add_threshold(Threshold(0.5, 1e-3, "pairs", 10, 1000, model.model_id, "2026-01-01"))
            assert not device.update().changed
            assert isinstance(device.verify("Owner", images_of(IDENTITIES[0])[6]), Match)
    finally:
        fleet.release(small_model())


def test_people_enrolled_without_a_fleet_stay_when_the_phone_joins_one(fleet: RealFleet) -> None:
    with fleet.open("stays") as device:
        enrolled = device.enroll("Owner", images_of(IDENTITIES[0])[:4], consent=False, anyway=True)
        assert device.gallery.model_id == packaged_model().model_id
        device.join(fleet.invite("stays"))
        (person,) = device.people()
        assert (person.name, person.num_images) == ("Owner", enrolled.person.num_images)
        assert device.gallery.model_id == small_model().model_id
        assert len(device.gallery.references(small_model().model_id).embeddings) == 1
        fleet_id = device.status().device_id
    with fleet.open("stays") as again:
        assert again.status().device_id == fleet_id
        assert again.renew_certificate().device_id == fleet_id


def test_a_model_that_a_phone_cannot_run_is_postponed_when_it_joins(fleet: RealFleet) -> None:
    """The phone is in the fleet all the same, and who is enrolled stays recognised by the model there was."""

    def packaged_only(model: Model) -> Runtime:
        if model.model_id != packaged_model().model_id:
            raise MissingDependencyError("no engine of this phone runs the fleet's model")
        return load_embedder(model.spec, model.layout, graphs=fleet.folder / "none")

    told: list[Event | Transfer] = []
    with fleet.open(
        "old-engine",
        tell=told.append,
        runtime_loader=packaged_only,
    ) as device:
        device.enroll("Owner", images_of(IDENTITIES[0])[:4], consent=False, anyway=True)
        device.join(fleet.invite("old-engine"))
        assert device.is_in_fleet
        assert device.gallery.model_id == packaged_model().model_id
    assert "update_postponed" in [each.kind for each in told if isinstance(each, Event)]


def test_a_gallery_moves_to_another_phone(fleet: RealFleet, tmp_path: Path) -> None:
    with fleet.phone("old", "moving", IDENTITIES[0]) as old, fleet.open("new") as new:
        old.export(tmp_path / "backup", "a long password")
        new.join(fleet.invite("moving"))
        assert new.restore(tmp_path / "backup", "a long password") == 1
        (before,), (after,) = old.people(), new.people()
        assert (after.name, after.num_images, after.consent_unix_s) == (
            "Owner",
            before.num_images,
            before.consent_unix_s,
        )
        model_id = small_model().model_id
        np.testing.assert_allclose(
            new.gallery.references(model_id).embeddings, old.gallery.references(model_id).embeddings, atol=1e-5
        )


def test_one_process_per_home_takes_part(fleet: RealFleet) -> None:
    with (
        fleet.phone("twice", "twice", IDENTITIES[0]) as device,
        exclusive(device.home.participation_lock, program="mien-device participate"),
    ):
        ended = mien_device("participate", "--rounds", "1", "--home", fleet.folder / "twice")
    assert ended.returncode == TABLE[AlreadyExistsError].exit_code
    assert "another mien-device participate" in ended.stderr


def test_the_doctor_finds_a_healthy_device_and_names_what_is_wrong(fleet: RealFleet) -> None:
    fleet.phone("doctor", "doctor", IDENTITIES[0]).close()
    home = fleet.folder / "doctor"
    found = json.loads(mien_device("doctor", "--home", home, "--json").stdout)["findings"]
    assert {row["what"]: row["ok"] for row in found} == {
        "home folder": True,
        "key store": True,
        "gallery": True,
        "private sums": True,
        "detector": True,
        "engine": True,
        "membership": True,
        "coordinator": True,
        "model": True,
        # The small model of these tests carries none.
        "threshold": False,
    }
    os.chmod(home, 0o755)  # noqa: PTH101
    sick = mien_device("doctor", "--home", home)
    assert sick.returncode == 1
    assert "chmod 700" in sick.stdout
