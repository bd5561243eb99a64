"""Real phones under masks and a coordinator that tells all but one of them something else: no sum is opened."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from device_sdk.device import Device
from device_sdk.models.models import Model
from device_sdk.rounds.participate import Counted, NotCounted, RoundOutcome
from mien.errors import MienError, TransparencyError
from mien.layout import model_id
from mien.log.checkpoints import Note, log_key
from mien.protocol.canonical import model_to_json
from mien.protocol.ids import ModelId
from mien.protocol.revocations import RevocationList
from mien.protocol.tensors import PublicShard
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.program.monitoring import look
from tests.helpers import ROOT
from tests.integration.real_fleet import RealFleet, lying, real_fleet, small_model
from tests.tiny import made_up_crops

pytestmark = pytest.mark.slow

NUM_PHONES = 3
POPULATION = "lied-to"


def shard_of(seed: int) -> PublicShard:
    """Return public faces of nobody."""
    return PublicShard(made_up_crops(2, seed=seed), np.array([0, 1]), "none", "made up")


@dataclass(frozen=True)
class Site:
    """Both servers, phones of one population with a source each, and where the coordinator reads its lie.

    `other_shard` is the name and size of the released model's public faces: there, and not the round's.
    """

    fleet: RealFleet
    phones: tuple[Device, ...]
    lie: Path
    other_shard: tuple[str, int]
    numbers: Iterator[int]

    @property
    def victim(self) -> str:
        """The id of the phone that is told the truth."""
        return str(self.phones[0].status().device_id)

    def model(self, faces: bytes | None = None) -> Model:
        """Return a model that no phone has seen, with public faces: its own, or these."""
        base, number = small_model(), next(self.numbers)
        theta = base.theta.copy()
        theta[-1] += np.float32(1e-3 * number)
        folder = self.fleet.folder
        theta_path, shard = folder / f"{number}.f32", folder / f"{number}.shard"
        theta_path.write_bytes(np.ascontiguousarray(theta, "<f4").tobytes())
        shard.write_bytes(faces or shard_of(number).to_bytes())

        async def story() -> None:
            async with self.fleet.coordinator.operator() as operator:
                await operator.import_model(model_to_json(base.spec, base.layout), theta_path, shard)

        self.fleet.loop.run(story())
        return replace(base, model_id=model_id(base.layout.sha256, theta), theta=theta)

    def run(self, model: Model, lie: dict[str, Any] | None) -> list[RoundOutcome | MienError]:
        """Return what each phone makes of a round, and cancel its task."""
        if lie is None:
            self.lie.unlink(missing_ok=True)
        else:
            self.lie.write_text(json.dumps({"victim": self.victim, "model_id": model.model_id, **lie}))
        task_id = self.submit(model, rounds=1)
        outcomes = self.take_part()
        assert self.end(task_id) == sum(isinstance(outcome, Counted) for outcome in outcomes) // NUM_PHONES
        return outcomes

    def submit(self, model: Model, rounds: int) -> str:
        """Submit a task over a model, and return its id."""
        task = TaskSpec(
            f"t{next(self.numbers)}",
            method="fedavg",
            rounds=rounds,
            population=POPULATION,
            model_id=model.model_id,
            cohort=CohortSpec(size=NUM_PHONES, min_reports=NUM_PHONES),
            deadlines=DeadlineSpec(*(100.0,) * 7),
            local=LocalSpec(lr=1.0, flip=False),
            options={"margin": 1.0},
            privacy=PrivacySpec(min_cohort=NUM_PHONES),
        )
        return self.fleet.submit(task)

    def take_part(self) -> list[RoundOutcome | MienError]:
        """Return what each phone makes of a round."""
        with ThreadPoolExecutor(NUM_PHONES) as pool:
            return list(pool.map(self._take_part, range(NUM_PHONES)))

    def end(self, task_id: str) -> int:
        """Return how many rounds a task closed; one that closed none is cancelled."""

        async def story() -> int:
            async with self.fleet.coordinator.operator() as operator:
                (closed,) = [task.rounds_closed for task in await operator.tasks() if task.task_id == task_id]
                if not closed:
                    await operator.cancel(task_id)
                return closed

        return self.fleet.loop.run(story())

    def release(self, lie: dict[str, Any]) -> ModelId:
        """Release a model that no phone has seen to all while the coordinator lies, and return its id."""
        released = self.model().model_id
        self.lie.write_text(json.dumps({"victim": "nobody", "model_id": "none", **lie}))

        async def story() -> None:
            async with self.fleet.coordinator.operator() as operator:
                await operator.release(released)

        self.fleet.loop.run(story())
        return released

    def exported(self) -> str:
        """Return the folder into which the operator wrote the log, as it is now."""
        out = self.fleet.folder / f"log{next(self.numbers)}"
        told = ["log", "export", "--home", str(self.fleet.coordinator.home.folder), "--out", str(out)]
        subprocess.run([sys.executable, "-m", "coordinator.commands.cli", *told], check=True, cwd=ROOT)
        return str(out)

    def _take_part(self, number: int) -> RoundOutcome | MienError:
        """Return the first outcome of the phone that is told the truth, and of another what it goes on to."""
        source = self.fleet.folder / f"faces{number}"
        steps = self.phones[number].participate(rounds=1, idle_s=60.0, source=source, source_aligned=True)
        try:
            return next(steps) if number == 0 else list(steps)[-1]
        except MienError as error:
            return error


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a site whose coordinator is honest until a test says otherwise."""
    folder = tmp_path_factory.mktemp("lies")
    with lying(folder / "lie.json"), real_fleet(folder) as fleet:
        data, others = shard_of(0).to_bytes(), folder / "others.shard"
        others.write_bytes(data)
        fleet.release(small_model(), shard=others)
        other_shard = hashlib.sha256(data).hexdigest(), len(data)
        phones = []
        for number in range(NUM_PHONES):
            owner = folder / f"faces{number}" / "Owner"
            owner.mkdir(parents=True)
            for k, crop in enumerate(made_up_crops(3, seed=50 + number)):
                cv2.imwrite(str(owner / f"{k}.png"), crop[..., ::-1])
            options = {"participation.min_cohort": NUM_PHONES, "participation.allow_plain_sums": False}
            phone = fleet.open(f"phone{number}", **options)
            phone.join(fleet.invite(POPULATION))
            phones.append(phone)
        yield Site(fleet, tuple(phones), folder / "lie.json", other_shard, itertools.count(1))
        for phone in phones:
            phone.close()


@pytest.fixture(scope="module")
def honest(site: Site) -> list[str]:
    """What came of a round in which nobody was lied to, for tests of what is remembered of one."""
    return codes(site.run(site.model(), None))


def codes(outcomes: list[RoundOutcome | MienError]) -> list[str]:
    """Return the code of each phone's outcome: the victim's first."""
    return [each.code if isinstance(each, NotCounted | MienError) else "counted" for each in outcomes]


def test_the_same_coordinator_gets_its_sum_while_it_tells_the_truth(honest: list[str]) -> None:
    assert honest == ["counted"] * NUM_PHONES


@pytest.mark.parametrize(
    "lie",
    [
        {"input": {"mean": 1e12, "scale": 1e12}},  # what they train is nothing: the sum is the victim's update
        {"input": {"scale": 127.5}},  # another family's
        {"spec": {"terms": "others"}},  # nothing that arithmetic reads, and still not what the others were told
        {"spec": {"trainable": ["*"]}},
        {"shard": "the released model's"},
        {"reply": True},
    ],
    ids=lambda lie: str(next(iter(lie.items()))),
)
def test_nothing_opens_where_one_phone_is_told_the_truth_and_the_others_are_not(
    site: Site, lie: dict[str, Any]
) -> None:
    told = {**lie, "shard": site.other_shard} if "shard" in lie else lie
    outcomes = site.run(site.model(), told)
    victim, *others = codes(outcomes)
    assert "counted" not in (victim, *others), outcomes
    assert set(others) & {"model_mismatch", "layout_mismatch", "violation", "transparency"}, outcomes


@pytest.mark.usefixtures("honest")
def test_a_forked_log_is_refused_and_its_evidence_kept(site: Site) -> None:
    """After an honest round, which the phones remember: two are shown another past, signed by the log's own key."""
    for lie in ({"fork": True}, {"fork": True}):
        _, *others = codes(site.run(site.model(), lie))
        assert others == ["transparency"] * 2
    for phone in site.phones[1:]:
        evidence, last = phone.log_files.evidence()[-1], phone.log_files.last()
        assert last is not None
        notes = [Note.parse(evidence[which]["note"]) for which in ("seen", "shown")]
        key = log_key(bytes.fromhex(last.log_key), last.checkpoint.origin)
        assert [note.check(key) for note in notes] == [0, 0]
        aside = phone.log_files.begin_anew()
        assert aside is not None
        assert any("a forked log" in fault for fault in look(site.exported(), evidence=[aside]).faults)
    assert look(site.exported()).faults == ()
    assert site.phones[0].log_files.evidence() == []


@pytest.mark.usefixtures("honest")
def test_nobody_trains_for_a_round_that_is_not_in_the_log(site: Site) -> None:
    """The log holds an honest round, and the phones that took part in it; none of the lie."""
    outcomes = codes(site.run(site.model(), {"unlogged": True}))
    assert outcomes[1:] == ["transparency"] * 2, outcomes
    assert outcomes[0] == "transparency", outcomes
    kept = [phone.log_files.evidence_path for phone in site.phones]
    found = look(site.exported(), witness=site.phones[0].identity.witness_key, evidence=kept)
    assert found.faults
    assert all("an unlogged round" in fault for fault in found.faults)
    assert found.cosigned_unix_s
    assert found.counts["certificate"] == NUM_PHONES
    assert 0 < found.counts["roster"] <= found.counts["round"]


def test_a_model_that_is_swapped_between_rounds_is_trained_and_found(site: Site) -> None:
    """All phones are told alike; the other model has the description and the public faces of the honest one."""
    site.lie.unlink(missing_ok=True)
    # Made once: safetensors writes its metadata in any order, so the same faces have more than one hash.
    faces = shard_of(next(site.numbers)).to_bytes()
    first, other = site.model(faces), site.model(faces)
    task_id = site.submit(first, rounds=2)
    assert codes(site.take_part()) == ["counted"] * NUM_PHONES
    site.lie.write_text(json.dumps({"victim": "nobody", "model_id": "none", "swap": other.model_id}))
    outcomes = site.take_part()
    assert codes(outcomes) == ["counted"] * NUM_PHONES, outcomes
    assert site.end(task_id) == 2
    (fault,) = look(site.exported()).faults
    assert f"trains model {other.model_id}, which is not its task's first and which no round of it made" in fault


def test_a_model_comes_into_use_only_by_a_release_that_is_in_the_log(site: Site) -> None:
    phone, honest = site.phones[1], site.release({})
    assert phone.update().model_id == honest
    num_lies = len(phone.log_files.evidence())
    for lie, why in (({"unlogged_release": True}, "does not show that the log"), ({"fork": True}, "do not begin with")):
        site.release(lie)
        for _ in range(2):
            with pytest.raises(TransparencyError, match=f"{why} .*the model that is here stays in use"):
                phone.update()
        assert phone.status().model_id == honest
    assert len(phone.log_files.evidence()) == num_lies + 2
    faults = look(site.exported(), evidence=[phone.log_files.evidence_path]).faults
    assert any("an unlogged release" in fault for fault in faults)
    newest = site.release({})
    assert phone.update().model_id == newest
    assert phone.status().model_id == newest


def test_a_revoked_phone_that_the_coordinator_lets_in_is_masked_with_by_nobody(site: Site) -> None:
    """The last of these tests: the phone that is told the truth is one that the registrar has revoked."""
    site.fleet.revoke(site.victim)
    identity, path, end = site.phones[0].identity, site.fleet.coordinator.home.crl_path, time.monotonic() + 120
    while not RevocationList.parse(path.read_bytes(), identity.registrar_ca).names(identity.certificate.serial_number):
        assert time.monotonic() < end, "the coordinator was not told"
        time.sleep(0.1)
    outcomes = codes(site.run(site.model(), {"admits_revoked": True}))
    assert "counted" not in outcomes
    assert "cohort" in outcomes[1:]  # the other may hear first that the attempt ended without this one
