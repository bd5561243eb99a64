"""Phones of the JVM and a coordinator that lies, in its log of rounds or by letting revoked phones in.

For a round of a log that lies none trains, and each keeps what it was shown; nobody masks with a revoked phone.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from cryptography import x509

from device_sdk.models.models import Model
from mien.layout import model_id
from mien.log.checkpoints import WITNESS, Note, NoteKey, log_key
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.program.monitoring import look
from tests.android.jvm import JvmDevice
from tests.android.story import TINY, Story, signed_story, three_phones
from tests.helpers import ROOT
from tests.integration.real_fleet import lying

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MODEL: Final = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
POPULATION: Final = "looking"


@pytest.fixture(scope="module")
def lie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the coordinator reads its lie; while there is none, it is honest."""
    return tmp_path_factory.mktemp("lie") / "lie.json"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, lie: Path) -> Iterator[Story]:
    with lying(lie), signed_story(tmp_path_factory.mktemp("round-log")) as running:
        running.release(MODEL)
        yield running


def tell(lie: Path, **told: bool) -> None:
    """Have the coordinator lie from now on."""
    lie.write_text(json.dumps({"victim": "nobody", "model_id": "none", **told}))


def task(name: str, rounds: int) -> TaskSpec:
    return TaskSpec(
        name,
        method="fedavg",
        rounds=rounds,
        population=POPULATION,
        trainable=TINY.spec.trainable,
        cohort=CohortSpec(size=3, min_reports=3),
        deadlines=DeadlineSpec(120.0, 120.0, *(120.0,) * 5),
        local=LocalSpec(lr=0.05),
        options={"margin": 1.0},
        privacy=PrivacySpec(min_cohort=3),
    )


def take_part(phone: JvmDevice) -> dict[str, Any]:
    """Have a phone look for work until there was some, and return how that ended."""
    while (outcome := phone.do("participate", min_cohort=3, unmet=[]))["kind"] == "WAIT":
        pass
    return outcome


def until_enough(phone: JvmDevice) -> dict[str, Any]:
    """Have a phone look for work until it waits because its pictures are in enough sums, and return how that ended."""
    while "in as many sums as its owner lets them" not in (
        outcome := phone.do("participate", min_cohort=3, unmet=[])
    ).get("reason", ""):
        assert outcome["kind"] == "WAIT", outcome
    assert (outcome["kind"], "training" in outcome["words"]) == ("WAIT", False)
    return outcome


def in_a_second_sum(phones: list[JvmDevice], **agreed: Any) -> list[dict[str, Any]]:
    """Have phones that may be in two sums over a model look for work, and return how that ended without a sum.

    One that leaves may bring the attempt to its end before the others hear why.
    """

    def end(phone: JvmDevice) -> dict[str, Any]:
        told = {"min_cohort": 3, "unmet": [], "max_sums_per_model": 2, **agreed}
        while (outcome := phone.do("participate", **told))["kind"] == "WAIT":
            pass
        assert outcome["kind"] == "NOT_COUNTED", outcome
        return outcome

    with ThreadPoolExecutor(len(phones)) as pool:
        return list(pool.map(end, phones))


def revoke(story: Story, phone: JvmDevice) -> None:
    """Revoke a phone, and wait until the coordinator has the list that names it."""
    story.fleet.revoke(phone.do("status")["device"])
    path, end = story.fleet.coordinator.home.crl_path, time.monotonic() + 120
    while not len(x509.load_der_x509_crl(path.read_bytes())):
        assert time.monotonic() < end, "the coordinator was not told"
        time.sleep(0.1)


def all_of(phones: list[JvmDevice]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(phones)) as pool:
        return list(pool.map(take_part, phones))


def another_model(number: int) -> Model:
    """Return a model of the same layout whose last number is another."""
    theta = TINY.theta.copy()
    theta[-1] += np.float32(1e-3 * number)
    return replace(MODEL, model_id=model_id(TINY.layout.sha256, theta), theta=theta)


def cancel(story: Story, task_id: str) -> None:
    async def cancelled() -> None:
        async with story.fleet.coordinator.operator() as operator:
            await operator.cancel(task_id)

    story.fleet.loop.run(cancelled())


def exported(story: Story, out: Path) -> str:
    """Return the folder into which the operator wrote the log."""
    told = ["log", "export", "--home", str(story.fleet.coordinator.home.folder), "--out", str(out)]
    subprocess.run([sys.executable, "-m", "coordinator.commands.cli", *told], check=True, cwd=ROOT)
    return str(out)


def test_a_lie_is_refused_before_training_and_an_honest_round_trains(story: Story, lie: Path, tmp_path: Path) -> None:
    with three_phones(story, POPULATION, tmp_path) as phones:
        assert all(phone.do("status")["looks_up_rounds"] for phone in phones)
        # 1. A round that the log does not hold.
        tell(lie, unlogged=True)
        unlogged = story.fleet.submit(task("unlogged", rounds=1))
        for outcome in all_of(phones):
            assert (outcome["kind"], outcome["code"]) == ("FAILED", "transparency"), outcome
            assert "training" not in outcome["words"]
            assert outcome["disclosed"] == ["unlogged"]
        cancel(story, unlogged)
        lie.unlink()
        # 2. An honest round of the same phones.
        two_rounds = story.fleet.submit(task("two-rounds", rounds=2))
        assert [outcome["kind"] for outcome in all_of(phones)] == ["COUNTED"] * 3
        before = [phone.do("status") for phone in phones]
        assert all(status["log_entries"] > 0 and len(status["lies"]) == 1 for status in before)
        # 3. Another past, signed by the log's own key, as often as the coordinator tries.
        tell(lie, fork=True)
        for outcome in all_of(phones):
            assert (outcome["kind"], outcome["code"]) == ("FAILED", "transparency"), outcome
            assert "training" not in outcome["words"]
        for phone, was in zip(phones, before, strict=True):
            now = phone.do("status")
            assert now["log_entries"] == was["log_entries"], "what was refused is not remembered"
            assert now["num_private_sums"] == 1
            _, (unheard, forked) = now["pending"], now["lies"]
            assert "does not show that the log of rounds holds this round" in unheard
            assert f"do not begin with the {was['log_entries']} that it showed before" in forked
            assert [entry["code"] for entry in now["journal"]].count("transparency") == 2, "each lie once"
        cancel(story, two_rounds)
        lie.unlink()
        # 4. The evidence convinces whoever it is handed to.
        kept = [phone.home / "log-evidence.json" for phone in phones]
        piece = json.loads(kept[0].read_text(encoding="utf-8"))[1]
        shown, seen = (Note.parse(piece[which]["note"]) for which in ("shown", "seen"))
        key = log_key(bytes.fromhex(piece["seen"]["log_key"]), seen.text.split("\n")[0])
        assert (shown.check(key), seen.check(key)) == (0, 0), "the coordinator signed both"
        found = look(exported(story, tmp_path / "log"), evidence=kept)
        for fault in ("a forked log", "an unlogged round"):
            assert any(fault in each for each in found.faults), found.faults
        # 5. Another task over the model that the honest round began with: the same pictures are in a sum over it.
        cancelled = story.fleet.submit(task("again", rounds=1))
        with ThreadPoolExecutor(len(phones)) as pool:
            assert len(list(pool.map(until_enough, phones))) == 3
        cancel(story, cancelled)
        status = phones[0].do("status")
        assert (status["num_private_sums"], status["num_sums_today"]) == (1, 1)
        # 6. Owners who count no phones that joined today.
        young = story.fleet.submit(task("young", rounds=1))
        left = in_a_second_sum(phones, min_peer_age_days=1)
        assert any("0 of the 2 phones that this one shares keys with were admitted" in each["reason"] for each in left)
        assert all("shares" not in each["words"] for each in left)
        cancel(story, young)
        # 7. A phone that the registrar has revoked and the coordinator lets in: nobody shares keys with it.
        revoke(story, phones[0])
        tell(lie, admits_revoked=True)
        among_them = story.fleet.submit(task("among-them", rounds=1))
        _, *others = in_a_second_sum(phones)
        assert any("the registrar has revoked a phone of this cohort" in each["reason"] for each in others)
        assert all("shares" not in each["words"] for each in others)
        cancel(story, among_them)
        assert [phone.do("status")["num_private_sums"] for phone in phones] == [1] * 3
        # 8. A signed release that the log does not hold comes into use on no phone, and one that it holds does.
        in_use = phones[1].do("status")["model_id"]
        tell(lie, unlogged_release=True)
        story.release(another_model(1))
        code, why = phones[1].refused("update")
        assert code == "transparency"
        assert "does not show that the log of rounds holds this release" in why
        status = phones[1].do("status")
        assert (status["model_id"], len(status["lies"])) == (in_use, 3)
        lie.unlink()
        story.release(another_model(2))
        assert phones[1].do("update")["changed"]
        assert phones[1].do("status")["model_id"] == another_model(2).model_id
        # 9. The owner of the phone that was revoked may begin anew.
        phones[0].do("log")
        status = phones[0].do("status")
        assert (status["lies"], status["log_entries"]) == ([], 0)
        assert (phones[0].home / "log-evidence.1.json").is_file()


def test_a_home_of_an_earlier_version_learns_whose_signature_to_ask_for(story: Story, tmp_path: Path) -> None:
    """Its identity holds no witness's key: it opens, says that it looks nothing up, and its renewal brings the key.

    What a phone has pinned no renewal takes away: here a further witness, whom this registrar does not name.
    """
    file = tmp_path / "home" / "identity.json"
    with JvmDevice(tmp_path / "home") as phone:
        phone.do("join", invite=story.fleet.invite("earlier"))
        assert phone.do("status")["looks_up_rounds"]
        known = json.loads(file.read_text())["witness_key"]
    changed(file, witness_key=None, further_witnesses=None, witnesses_needed=None)
    with JvmDevice(tmp_path / "home") as phone:
        status = phone.do("status")
        assert (status["joined"], status["looks_up_rounds"]) == (True, False)
        phone.do("renew")
        assert phone.do("status")["looks_up_rounds"]
        stored = json.loads(file.read_text())
        assert (stored["witness_key"], stored["further_witnesses"], stored["witnesses_needed"]) == (known, [], 0)
    further = str(NoteKey.named(WITNESS, bytes(32)))
    changed(file, further_witnesses=[further], witnesses_needed=1)
    with JvmDevice(tmp_path / "home") as phone:
        phone.do("renew")
    stored = json.loads(file.read_text())
    assert (stored["further_witnesses"], stored["witnesses_needed"]) == ([further], 1)


def changed(file: Path, **told: Any) -> None:
    """Write an identity with other facts, without those that are None, as a phone would have."""
    stored = {**json.loads(file.read_text()), **told}
    del stored["sha256"]
    stored = {name: value for name, value in stored.items() if value is not None}
    stored["sha256"] = hashlib.sha256(_canonical(stored)).hexdigest()
    file.write_bytes(_canonical(stored))


def _canonical(stored: dict[str, Any]) -> bytes:
    return json.dumps(stored, sort_keys=True, separators=(",", ":")).encode()
