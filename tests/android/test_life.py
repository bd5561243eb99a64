"""A phone's life on the JVM, against the real servers: joined, released to, verified, renewed, withdrawn, gone."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from device_sdk.models.models import Model
from device_sdk.people.enrolled import References, Template
from mien.layout import model_id
from mien.methods.base import Crops
from mien.protocol.invite import Invite
from mien.specs import Threshold
from tests.android.jvm import JvmDevice
from tests.android.story import TINY, Story, crops_file, signed_story, until
from tests.graphs import FOLDER, tiny_onnx_runtime
from tests.tiny import made_up_crops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DAY_MS: Final = 24 * 3600 * 1000
POPULATION: Final = "life"
PEOPLE: Final = {"Ada": 1, "Bo": 2, "Cy": 3}


def embed(theta: np.ndarray[Any, np.dtype[np.float32]], crops: Crops) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return embeddings as Python's phones make them."""
    return tiny_onnx_runtime(TINY).embed(theta, crops)


def enrolled_crops(person: int) -> Crops:
    return made_up_crops(3, seed=person, spread=10)


def probes() -> Crops:
    """Return crops of the people enrolled, and of nobody."""
    return np.concatenate([made_up_crops(2, seed=seed, spread=60) for seed in range(1, 9)])


@dataclasses.dataclass(frozen=True)
class Expected:
    """What Python decides on the probes under a model: who, by number (0: nobody), and for the first person."""

    threshold: float
    identified: list[int]
    verified: list[int]


def expected(theta: np.ndarray[Any, np.dtype[np.float32]]) -> Expected:
    """Return Python's decisions, at a threshold that no probe is near to."""
    templates = [
        Template.of(embed(theta, enrolled_crops(person)), "any", TINY.spec.input) for person in PEOPLE.values()
    ]
    references = References("any", tuple(PEOPLE), np.stack([template.embedding for template in templates]))
    embedded = embed(theta, probes())
    nearest = [references.nearest(probe) for probe in embedded]
    first = references.of("Ada") @ embedded.T
    scores = np.sort(np.concatenate([[score for _, score in nearest], first.max(axis=0)]))
    gaps = np.diff(scores)
    middle = slice(len(gaps) // 4, 3 * len(gaps) // 4)
    widest = len(gaps) // 4 + int(np.argmax(gaps[middle]))
    threshold = float(scores[widest] + scores[widest + 1]) / 2
    return Expected(
        threshold,
        [PEOPLE[name] if score >= threshold else 0 for name, score in nearest],
        [1 if score >= threshold else 0 for score in first.max(axis=0)],
    )


def version(factor: float) -> Model:
    """Return a model of other parameters, with a threshold of its own."""
    theta = (TINY.theta * np.float32(factor)).astype(np.float32)
    identity = model_id(TINY.layout.sha256, theta)
    made = Threshold(expected(theta).threshold, 1e-3, "made up", 100, 30_000, identity, "2026-01-01")
    lax = dataclasses.replace(made, value=-1.0, fmr=0.5)
    return Model(identity, dataclasses.replace(TINY.spec, thresholds=(lax, made)), TINY.layout, theta, None)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with signed_story(tmp_path_factory.mktemp("life")) as running:
        running.release(version(1.0))
        yield running


def decisions(phone: JvmDevice, file: str) -> tuple[list[int], list[int]]:
    """Return whom a phone takes the probes for, and which of them for the first person."""
    return phone.do("identify", crops=file)["people"], phone.do("verify", person=1, crops=file)["people"]


def enrolled(phone: JvmDevice, story: Story, folder: Path, *, agrees: bool = False) -> None:
    """Have a phone join, fetch the released model and enrol three people."""
    phone.do("join", invite=story.fleet.invite(POPULATION))
    phone.do("update")
    for name, person in PEOPLE.items():
        file = crops_file(folder, name, enrolled_crops(person))
        # Anyway: to a network that was never trained, people look alike.
        assert phone.do("enrol", name=name, crops=file, agrees=agrees, anyway=True) == {"person": person}


def test_a_signed_release_is_verified_with_as_python_does(story: Story, tmp_path: Path) -> None:
    ada = crops_file(tmp_path, "ada", enrolled_crops(1))
    with JvmDevice(tmp_path / "home") as phone:
        assert phone.do("status")["joined"] is False
        assert phone.refused("update")[0] == "invite", "an invite comes first"
        phone.do("join", invite=story.fleet.invite(POPULATION))
        code, text = phone.refused("enrol", name="Ada", crops=ada, agrees=False)
        assert (code, "fetch it while online" in text) == ("not_found", True)
        assert phone.do("update") == {"changed": True}
        assert phone.do("update") == {"changed": False}
        assert phone.refused("identify", crops=ada)[0] == "not_enrolled"
        enrolled(phone, story, tmp_path)
        code, text = phone.refused("enrol", name="Ada", crops=ada, agrees=False, anyway=True)
        assert (code, "somebody of that name" in text) == ("already_exists", True)
        code, text = phone.refused("enrol", name="Eve", crops=ada, agrees=False)
        assert (code, "this is the face of " in text) == ("already_exists", True)
        assert phone.refused("verify", person=9, crops=ada)[0] == "not_enrolled"
        now = expected(version(1.0).theta)
        file = crops_file(tmp_path, "probes", probes())
        assert 0 < sum(who > 0 for who in now.identified) < len(now.identified), "some are known, some are not"
        assert decisions(phone, file) == (now.identified, now.verified)
        status = phone.do("status")
        assert [(each["name"], each["images"], each["trains"]) for each in status["people"]] == [
            (name, 3, False) for name in PEOPLE
        ]
        assert (status["model_id"], status["num_agreed"]) == (version(1.0).model_id, 0)
        assert status["received_bytes"] > 4 * TINY.layout.size, "the model came over the network"


def test_a_power_cut_while_a_release_comes_leaves_the_old_or_the_new(story: Story, tmp_path: Path) -> None:
    home, file = tmp_path / "home", crops_file(tmp_path, "probes", probes())
    with JvmDevice(home) as phone:
        enrolled(phone, story, tmp_path)
        before = decisions(phone, file)
    newer = version(1.5)
    story.release(newer)
    now = expected(newer.theta)
    after = (now.identified, now.verified)
    for pause_s in (0.05, 0.15, 0.3, 0.6):
        with JvmDevice(home) as phone:
            phone.send("update")
            time.sleep(pause_s)  # whenever that is: at any instant it is the one or the other
        with JvmDevice(home) as phone:
            assert decisions(phone, file) in (before, after)
    with JvmDevice(home) as phone:
        phone.do("update")
        assert decisions(phone, file) == after
        models = [path.name for path in (home / "models").iterdir() if path.name.endswith(".json")]
        assert models == [f"{newer.model_id}.json"], "the old one is gone once the new one is in use"
        story.tamper("UPDATE releases SET model_id = ?", version(1.0).model_id)
        code, text = phone.refused("update")
        assert (code, "does not let it come back" in text) == ("corrupt_data", True)
        assert decisions(phone, file) == after, "the model that is here stays in use"
        story.tamper("UPDATE releases SET model_id = ?", newer.model_id)
        assert phone.do("update") == {"changed": False}


def test_what_is_damaged_says_so_and_comes_again(story: Story, tmp_path: Path) -> None:
    home, file = tmp_path / "home", crops_file(tmp_path, "probes", probes())
    with JvmDevice(home) as phone:
        enrolled(phone, story, tmp_path)
        before = decisions(phone, file)

    theta = json.loads((home / "models" / f"{story_model(home)}.json").read_bytes())["theta"]
    damage(home / "models" / theta)
    for graph in (home / "graphs").rglob("*"):
        if graph.is_file() and graph.name != "graphs.json":
            damage(graph)
    damage(home / "journal" / "journal")
    with JvmDevice(home) as phone:
        code, text = phone.refused("identify", crops=file)
        assert (code, "fetch it again" in text) == ("corrupt_data", True)
        phone.do("update")
        assert decisions(phone, file) == before
        assert phone.do("status")["joined"], "a damaged diary stops nobody"

    damage(home / "identity.json")
    with JvmDevice(home) as phone:
        code, text = phone.refused("update")
        assert (code, "join again" in text) == ("corrupt_data", True)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def story_model(home: Path) -> str:
    """Return the one model that a phone has."""
    (name,) = [path.stem for path in (home / "models").iterdir() if path.suffix == ".json"]
    return name


def test_who_is_damaged_is_listed_and_takes_part_in_nothing(story: Story, tmp_path: Path) -> None:
    home, file = tmp_path / "home", crops_file(tmp_path, "probes", probes())
    with JvmDevice(home) as phone:
        enrolled(phone, story, tmp_path, agrees=True)
        before, _ = decisions(phone, file)
    assert 1 in before, "the first person is among those recognised"
    damage(home / "gallery" / "person-000001")
    with JvmDevice(home) as phone:
        status = phone.do("status")
        assert [(each["id"], each["damaged"], each["trains"]) for each in status["people"]] == [
            (1, True, False),
            (2, False, True),
            (3, False, True),
        ]
        assert status["num_agreed"] == 2
        recognised = phone.do("identify", crops=file)["people"]
        assert 1 not in recognised, "nobody is taken for whom nothing is known of"
        assert all(now == was for was, now in zip(before, recognised, strict=True) if was > 1), "others are as before"
        for refused in ("verify", "add"):
            code, text = phone.refused(refused, person=1, crops=file)
            assert (code, "remove them, and enrol them again" in text) == ("corrupt_data", True)
        phone.do("consent", person=1, agrees=False)
        phone.do("remove", person=1)
        assert phone.do("enrol", name="Ada", crops=str(tmp_path / "Ada"), agrees=True, anyway=True) == {"person": 4}
        again = phone.do("identify", crops=file)["people"]
        assert again == [4 if who == 1 else who for who in before]
    damage(home / "gallery" / "templates")
    with JvmDevice(home) as phone:
        assert phone.do("status")["model_id"] == ""
        assert phone.do("update") == {"changed": True}, "templates are made again of the pictures"
        assert phone.do("identify", crops=file)["people"] == again


def test_a_home_is_one_programs_at_a_time(story: Story, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with JvmDevice(home) as first, JvmDevice(home) as second:
        enrolled(first, story, tmp_path)
        for command in ("status", "wipe"):
            code, text = second.refused(command)
            assert (code, "another program uses this home" in text) == ("in_use", True)
        assert len(first.do("status")["people"]) == len(PEOPLE)
        first.kill()
        assert len(second.do("status")["people"]) == len(PEOPLE), "the lock went with the process that held it"
        second.do("wipe")
        second.do("update")
        again = second.do("enrol", name="Ada", crops=str(tmp_path / "Ada"), agrees=False, anyway=True)
        assert again["person"] == len(PEOPLE) + 1


def test_a_full_disk_stops_an_enrolment_and_nothing_else(story: Story, tmp_path: Path) -> None:
    home, file = tmp_path / "home", crops_file(tmp_path, "probes", probes())
    with JvmDevice(home) as phone:
        enrolled(phone, story, tmp_path)
        before = decisions(phone, file)
        dee = crops_file(tmp_path, "dee", enrolled_crops(7))
        with phone.no_file_beyond(32 * 1024):
            code, text = phone.refused("enrol", name="Dee", crops=dee, agrees=False, anyway=True)
        assert (code, "make room" in text) == ("disk_full", True)
        assert len(phone.do("status")["people"]) == 3
        assert decisions(phone, file) == before
        assert phone.do("enrol", name="Dee", crops=dee, agrees=False, anyway=True)["person"] > 3


def test_invites_that_do_not_fit(story: Story, tmp_path: Path) -> None:
    good = story.fleet.invite(POPULATION)
    with JvmDevice(tmp_path / "first") as first, JvmDevice(tmp_path / "second") as second:
        assert first.refused("join", invite="https://example.com")[0] == "invite"
        at = good.index("rf=") + 3
        forged = good[:at] + "0" * 64 + good[at + 64 :]
        code, text = first.refused("join", invite=forged)
        assert (code, "ask the operator" in text) == ("fingerprint", True)
        assert first.do("status")["joined"] is False
        own = first.do("join", invite=good)
        assert first.do("join", invite=good) == own, "the same invite again is welcome"
        code, text = second.refused("join", invite=good)
        assert (code, "invite" in text) == ("invite", True), "somebody has used it"
        assert first.refused("join", invite=forged)[0] == "already_exists"


def test_an_expired_invite_joins_nobody(story: Story, tmp_path: Path) -> None:
    url = story.fleet.invite(POPULATION)
    name = hashlib.sha256(Invite.from_url(url).token.encode()).hexdigest()
    with contextlib.closing(sqlite3.connect(story.fleet.registrar.folder / "registrar.db", timeout=60)) as db, db:
        ended = db.execute("UPDATE invites SET expires_unix_s = 1 WHERE token_sha256 = ?", (name,))
        assert ended.rowcount == 1
    with JvmDevice(tmp_path / "home") as phone:
        code, text = phone.refused("join", invite=url)
        assert (code, "expired" in text, "new one" in text) == ("invite", True, True)
        assert phone.do("status")["joined"] is False


def test_a_phone_whose_key_is_lost_joins_again_as_another(story: Story, tmp_path: Path) -> None:
    home, file = tmp_path / "home", crops_file(tmp_path, "probes", probes())
    used, new = story.fleet.invite(POPULATION), story.fleet.invite(POPULATION)
    with JvmDevice(home) as phone:
        phone.do("join", invite=used)
        phone.do("update")
        ada = crops_file(tmp_path, "ada", enrolled_crops(1))
        phone.do("enrol", name="Ada", crops=ada, agrees=True)
        before, seen = phone.do("status"), decisions(phone, file)
        assert (before["joined"], before["lost_key"]) == (True, False)
    shutil.rmtree(home / "key")
    with JvmDevice(home) as phone:
        lost = phone.do("status")
        assert (lost["joined"], lost["lost_key"], lost["device"]) == (False, True, before["device"])
        assert decisions(phone, file) == seen, "whoever was enrolled is recognised all the same"
        assert phone.refused("update")[0] == "certificate"
        assert phone.refused("join", invite=used)[0] == "invite", "it was another device's"
        assert phone.do("join", invite=new)["device"] != before["device"]
        phone.do("update")
        again = phone.do("status")
        assert (again["joined"], again["lost_key"], again["num_agreed"]) == (True, False, 1)
        assert again["people"] == before["people"]
        assert decisions(phone, file) == seen


def test_a_server_of_another_authority_is_not_spoken_to(story: Story, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with JvmDevice(home) as phone:
        phone.do("join", invite=story.fleet.invite(POPULATION))
    stored = json.loads((home / "identity.json").read_bytes())
    put_identity(home, {**stored, "coordinator_ca": stored["registrar_ca"]})
    with JvmDevice(home) as phone:
        code, text = phone.refused("update")
        assert (code, "join again" in text) == ("certificate", True)


def test_a_certificate_is_renewed_in_time_and_after_its_end(story: Story, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with JvmDevice(home) as phone:
        phone.do("join", invite=story.fleet.invite(POPULATION))
        joined = phone.do("status")
        assert phone.do("renew")["ends_ms"] >= joined["certificate_ends_ms"]
    over = timedelta(days=7, minutes=1)
    for age in (timedelta(days=6), over):
        old = aged_certificate(story, home, age)
        with JvmDevice(home) as phone:
            assert phone.do("status")["certificate_ends_ms"] == old
            phone.do("update")
            status = phone.do("status")
            assert status["certificate_ends_ms"] > old
            assert status["device"] == joined["device"]
    aged_certificate(story, home, timedelta(days=60))
    with JvmDevice(home) as phone:
        assert phone.refused("update")[0] == "certificate", "the registrar renews no more"
    aged_certificate(story, home, over, registrar_address="127.0.0.1:1")
    with JvmDevice(home) as phone:
        phone.do("clock", ahead_ms=0, hurried=True)
        code, text = phone.refused("update")
        assert (code, "renewal" in text) == ("certificate", True), "it is over, and the registrar is away"
    aged_certificate(story, home, timedelta(days=6), registrar_address="127.0.0.1:1")
    with JvmDevice(home) as phone:
        phone.do("clock", ahead_ms=0, hurried=True)
        phone.do("update")  # it has a day left
        phone.do("clock", ahead_ms=DAY_MS // 8)
        code, text = phone.refused("update")
        assert (code, "set the clock" in text) == ("certificate", True)


def test_a_renewal_moves_nobody_to_another_population(story: Story, tmp_path: Path) -> None:
    """Where sums would be counted from nothing, and a promised epsilon with them."""
    home = tmp_path / "home"
    with JvmDevice(home) as phone:
        phone.do("join", invite=story.fleet.invite(POPULATION))
    stored = json.loads((home / "identity.json").read_text())
    put_identity(home, {**stored, "population": "night"})
    with JvmDevice(home) as phone:
        code, text = phone.refused("renew")
        assert (code, "into another population" in text) == ("certificate", True)
    assert json.loads((home / "identity.json").read_text())["population"] == "night"


def put_identity(home: Path, stored: dict[str, Any]) -> None:
    """Write a phone's identity as the phone does."""
    stored.pop("sha256", None)
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    stored["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (home / "identity.json").write_text(json.dumps(stored))


def aged_certificate(story: Story, home: Path, age: timedelta, **changed: str) -> int:
    """Put a certificate of seven days of that age into a phone; returns its end in milliseconds since 1970."""
    stored = json.loads((home / "identity.json").read_bytes())
    leaf = x509.load_der_x509_certificate(bytes.fromhex(stored["certificate"]))
    key = leaf.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    authority, now = story.fleet.registrar.authority(), datetime.now(UTC) - age
    old = pki.issue_device_leaf(authority, key, POPULATION, now, timedelta(days=7))
    stored.update(certificate=pki.to_der(old).hex(), **changed)
    put_identity(home, stored)
    return int(old.not_valid_after_utc.timestamp() * 1000)


def test_the_last_withdrawal_is_told_now_or_when_the_network_is_back(story: Story, tmp_path: Path) -> None:
    home, fleet = tmp_path / "home", story.fleet
    with JvmDevice(home) as phone:
        enrolled(phone, story, tmp_path, agrees=True)
        phone.do("clock", ahead_ms=0, hurried=True)
        device = phone.do("status")["device"]

        def is_out() -> bool:
            with fleet.coordinator.store() as store:
                return any(each.stays_out_since_ms for each in store.devices() if each.device_id == device)

        phone.do("consent", person=1, agrees=False)
        phone.do("remove", person=2)
        assert phone.do("tell") == {"told": True}
        assert not is_out(), "one of them still agrees"
        phone.do("consent", person=3, agrees=False)
        assert phone.do("status")["still_to_tell"]
        assert phone.do("tell") == {"told": True}
        assert is_out()
        status = phone.do("status")
        assert (status["stays_out"], status["still_to_tell"], status["num_agreed"]) == (True, False, 0)
        assert sorted(path.name for path in (home / "gallery").iterdir()) == [
            "person-000001",
            "person-000003",
            "templates",
        ], "nothing of the second person is left"

        phone.do("consent", person=1, agrees=True)
        fleet.coordinator.kill()
        assert phone.do("tell") == {"told": False}, "the coordinator is away"
        phone.do("wipe")
        assert phone.do("status")["stays_out"], "it outlives a wipe"
    fleet.coordinator.start()
    assert is_out(), "it was never told otherwise"
    with JvmDevice(home) as phone:
        phone.do("update")
        phone.do("enrol", name="Ada", crops=str(tmp_path / "Ada"), agrees=True)
        phone.do("update")
        assert not is_out(), "told at the next connection"
        assert phone.do("leave") == {"told": True}
        assert is_out()
        assert phone.do("status")["joined"] is False
        assert phone.do("join", invite=fleet.invite(POPULATION))["device"] != device, "another key, another device"


def test_a_revoked_phone_is_told_so_and_is_wiped_all_the_same(story: Story, tmp_path: Path) -> None:
    with JvmDevice(tmp_path / "home") as phone:
        enrolled(phone, story, tmp_path, agrees=True)
        story.fleet.revoke(phone.do("status")["device"])
        until(lambda: "error" in phone.answer("update"), "the coordinator did not hear of the revocation")
        assert phone.refused("update")[0] == "revoked"
        phone.do("wipe")
        assert phone.do("status")["people"] == []
        assert phone.do("tell") == {"told": False}


def test_a_release_that_was_half_fetched_goes_on_where_it_stopped(story: Story, tmp_path: Path) -> None:
    received: list[int] = []
    largest = max((FOLDER / TINY.layout.sha256).glob("*.onnx"), key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    name, half = hashlib.sha256(data).hexdigest(), data[: len(data) // 2]
    for begin in (b"", half, b"?" * len(half)):
        home = tmp_path / f"home-{len(received)}"
        graphs = home / "graphs" / TINY.layout.sha256
        graphs.mkdir(parents=True)
        if begin:
            (graphs / f"{name}.part").write_bytes(begin)
        with JvmDevice(home) as phone:
            phone.do("join", invite=story.fleet.invite(POPULATION))
            assert phone.do("update") == {"changed": True}
            received.append(phone.do("status")["received_bytes"])
        assert (graphs / name).read_bytes() == data
    assert received[0] - received[1] > len(half) * 0.9, "only the other half came"
    assert received[2] > received[1] + len(half) * 0.9, "what was damaged came once more"
