"""The vectors are what the code gives now, and hold the cases that they are for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from device_sdk.rounds.participate import local_seed
from mien.errors import ConfigError, CorruptDataError, InviteError, TransparencyError
from mien.layout import model_id
from mien.log.checkpoints import Checkpoint, Note, NoteKey
from mien.methods import METHODS
from mien.methods.base import Property
from mien.models.bundles import check_description, hash_of, verify
from mien.protocol.canonical import model_from_json, task_from_json
from mien.protocol.invite import Invite
from mien.protocol.rounds import RoundRef
from mien.secagg.planner import largest_group, smallest_sum
from mien.specs import TaskSpec
from tests.golden.client._evaluation_vectors import UNMEASURED
from tests.golden.client._methods_vectors import REFUSED as UNSAID
from tests.golden.client._sums_vectors import WHY
from tests.golden.client._vectors import ADAPTED, LAYOUT, REFUSED, SKELLAM, TASK, UNOPENED, UNSUMMED
from tests.golden.client.write import FOLDER, text_of


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name",
    [
        "admissions.json",
        "clusters.json",
        "draws.json",
        "invites.json",
        "revocations.json",
        "sealed.json",
        "search.json",
        "transparency.json",
    ],
)
def test_the_files_are_what_the_code_gives(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == text_of(name), "phones in other languages have to follow: write the vectors again, and build them"


# Records gain fields: what was written stays readable, and means the same.


def test_layouts_mean_what_was_written() -> None:
    file = load("layouts.json")
    spec, layout = model_from_json(file["spec_json"].encode())
    for case in file["by_groups"]:
        by_group, _ = model_from_json(case["spec_json"].encode())
        assert replace(by_group, groups=None) == spec
    theta = np.frombuffer(bytes.fromhex(file["theta"]), "<f4")
    assert (spec.layout_sha256, layout.sha256) == (file["layout_sha256"],) * 2
    assert model_id(layout.sha256, theta) == file["model_id"]
    for case in file["parts"]:
        part = layout.part(case["patterns"])
        contribution = METHODS["fedavg"].contribution_layout(TASK, part, spec.input.dim)
        assert (list(part.names), part.gather(theta).tobytes().hex()) == (case["names"], case["values"])
        assert (contribution.sha256, contribution.size) == (case["contribution_sha256"], case["contribution_size"])
    for pattern in file["refused_patterns"]:
        with pytest.raises(ConfigError):
            layout.part([pattern])
    now = json.loads(text_of("layouts.json"))
    for name in ("inputs", "statements", "subjects", "by_groups"):
        assert file[name] == now[name]
    assert {subject for case in file["by_groups"] for subject in case["never"]} == set(file["subjects"])


def test_noise_is_drawn_as_written() -> None:
    file, now = load("noise.json"), json.loads(text_of("noise.json"))
    assert (file["shares"], file["decided_in_decimals"]) == (now["shares"], now["decided_in_decimals"])
    assert [case["vector"] for case in file["protected"]] == [case["vector"] for case in now["protected"]]
    assert task_from_json(file["protected"][0]["task_json"].encode()).privacy.dp == SKELLAM
    loud = file["shares"][2]["drawn"]
    assert 30.0 / 2 * 0.5 < np.std(loud) < 30.0 / 2 * 2, "a share of a quarter of the variance"


def test_tasks_mean_what_was_written() -> None:
    for case in load("tasks.json")["tasks"]:
        task, at = task_from_json(case["json"].encode()), case["round"]
        ref = RoundRef(at["task_id"], at["round"], at["attempt"])
        assert hashlib.sha256(case["json"].encode()).hexdigest() == case["sha256"]
        assert local_seed(case["device"], task, ref) == case["local_seed"]
        assert (smallest_sum(task), largest_group(task)) == (case["smallest_sum"], case["largest_sum"])


def test_statistics_add_up_as_written() -> None:
    """Processors add in another order, so the last bit of a float32 may differ."""
    file, now = load("statistics.json"), json.loads(text_of("statistics.json"))
    lanes = METHODS["statistics"].contribution_layout
    for case, again in zip(file["phones"], now["phones"], strict=True):
        task = task_from_json(case["json"].encode())
        assert lanes(task, ADAPTED.part(("adapter.*",)), 5).sha256 == file["contribution_sha256"]
        sent = [np.frombuffer(bytes.fromhex(each["contribution"]), "<f4") for each in (again, case)]
        np.testing.assert_allclose(*sent, rtol=0, atol=1e-7, err_msg=case["what"])
    assert [case["why"] for case in file["refused"]] == list(UNSUMMED)
    for case in file["refused"]:
        with pytest.raises(ConfigError):
            lanes(task_from_json(case["json"].encode()), ADAPTED.part(("adapter.*",)), 5)


def test_histograms_are_as_written() -> None:
    file = load("evaluation.json")
    assert file == json.loads(text_of("evaluation.json"))
    assert [case["why"] for case in file["refused"]] == list(UNMEASURED)
    for case in file["refused"]:
        with pytest.raises(ConfigError):
            METHODS["federated_evaluation"].contribution_layout(
                task_from_json(case["json"].encode()), LAYOUT.part(("mix.*",)), 3
            )


def test_methods_send_and_are_told_as_written() -> None:
    file = load("methods.json")
    assert file == json.loads(text_of("methods.json"))
    assert [case["why"] for case in file["refused"]] == list(UNSAID)
    for case in file["refused"]:
        task = task_from_json(case["json"].encode())
        if task.privacy.reveals and Property.REVEALS not in METHODS[task.method].properties:
            continue  # its coordinator takes no such task
        with pytest.raises(ConfigError):
            _taken(task)


def _taken(task: TaskSpec) -> None:
    """Raise ConfigError for a task that its method does not take, or whose validators it does not."""
    if METHODS[task.method].requirements(task).validators != (task.validators is not None):
        raise ConfigError("its coordinator takes no such task")
    METHODS[task.method].contribution_layout(task, LAYOUT.part(("mix.*",)), 3)


def test_personal_models_are_judged_as_written() -> None:
    """Processors add in another order; who gets a personal model stays the same."""
    file, now = load("personal.json"), json.loads(text_of("personal.json"))
    _assert_close(now, file)
    used = [case.get("is_better") for case in file["phones"]]
    assert {True, False, None} == {*used}
    assert used[-2:] == [None, None], "refused"


def test_rounds_against_everybody_tell_as_written() -> None:
    file = load("everybody.json")
    assert file == json.loads(text_of("everybody.json"))
    assert [case["why"] for case in file["refused"]] == list(UNOPENED)
    for case in file["refused"]:
        with pytest.raises(ConfigError):
            METHODS["fedface"].contribution_layout(task_from_json(case["json"].encode()), LAYOUT.part(("mix.*",)), 3)


def test_searches_end_in_every_way() -> None:
    file = load("search.json")
    found = [at for case in file["models"] for at in case["at"]]
    assert {at["too_many"] for at in found} == {True, False}
    assert any(not case["at"] for case in file["models"])
    stored = file["stored"]["cases"]
    assert {(case["raised"], bool(case["named"])) for case in stored} == {
        ("", False),
        ("low_quality", False),
        ("low_quality", True),
        ("already_exists", True),
    }


def test_pictures_look_as_written() -> None:
    """Processors round differently: pixels may be one grey level apart."""
    _assert_close(json.loads(text_of("vision.json")), load("vision.json"))


def _assert_close(now: Any, written: Any) -> None:
    if isinstance(written, dict):
        assert now.keys() == written.keys()
        for name, value in written.items():
            if name in ("own", "public", "weight", "bias"):
                floats = [np.frombuffer(bytes.fromhex(text), "<f4") for text in (now[name], value)]
                np.testing.assert_allclose(*floats, atol=1e-3)
            elif name in ("rgb", "sample"):
                pixels = [np.frombuffer(bytes.fromhex(text), np.uint8).astype(int) for text in (now[name], value)]
                np.testing.assert_allclose(*pixels, atol=1)
            else:
                _assert_close(now[name], value)
    elif isinstance(written, list):
        assert len(now) == len(written)
        for ours, theirs in zip(now, written, strict=True):
            _assert_close(ours, theirs)
    elif isinstance(written, float):
        assert now == pytest.approx(written, abs=1e-3)
    else:
        assert now == written


def test_every_reason_to_refuse_a_picture_is_there() -> None:
    file = load("vision.json")
    seen = {word for case in file["appearances"] + file["geometries"] for word in case["words"]}
    assert seen | {"rolled"} == set(file["hints"]), "that a face is rolled, looks at it say"


def test_every_reason_to_refuse_a_task_is_there() -> None:
    refused = load("tasks.json")["refused"]
    assert [case["why"] for case in refused] == list(REFUSED)
    assert [task_from_json(case["json"].encode()) for case in refused] == list(REFUSED.values())


def test_releases_verify_as_written() -> None:
    file = load("bundles.json")
    for case in file["manifests"].values():
        signed = verify(file["release_key"], case["json"].encode(), bytes.fromhex(case["signature"]))
        check_description(signed, file["spec_json"].encode())
        assert (signed.model_id, hash_of(case["json"].encode())) == (file["model_id"], case["sha256"])
    first = file["manifests"]["first"]
    with pytest.raises(CorruptDataError):
        verify(file["release_key"], first["json"].encode(), bytes.fromhex(file["by_another_key"]))


def test_refused_invites_are_refused_here_too() -> None:
    for case in load("invites.json")["refused"]:
        with pytest.raises(InviteError):
            Invite.from_url(case["url"])


def _holds(check: Callable[..., object], *told: object) -> bool:
    try:
        check(*told)
    except TransparencyError:
        return False
    return True


def test_proofs_and_notes_that_the_log_is_not_of_are_refused_here_too() -> None:
    file = load("transparency.json")
    for kind in ("inclusion", "consistency"):
        refused = [case for case in file["proofs"][kind] if not case["holds"]]
        assert len(refused) > 25, kind
    notes = file["notes"]
    keys = {name: NoteKey.parse(key) for name, key in notes["keys"].items()}
    for case in notes["refused"]:
        with pytest.raises(TransparencyError):
            Note.parse(case["note"]).check(keys[case["key"]])
    for case in notes["broken"]:
        assert not _holds(lambda note: Checkpoint.parse(Note.parse(note).text), case["note"]), case["why"]
    assert not any(_holds(NoteKey.parse, key) for key in notes["broken_keys"].values())


def test_every_look_at_the_log_ends_with_what_it_is_called_after() -> None:
    """Of the lies each is refused for its own reason, and what was taken or waited for is no lie."""
    looks = load("transparency.json")["looks"]
    ends = {look["what"]: look["ends"] for look in looks}
    assert {what for what, end in ends.items() if end == "taken"} == {
        *("the first round", "a log that grew", "a log of one entry", "no cosignature, the registrar away"),
        *("one of two further witnesses, one needed", "both further witnesses"),
        *("a release: to this population", "a release: to all"),
    }
    assert sum(end == "waits" for end in ends.values()) == 7
    assert [what for what, end in ends.items() if end == "is too old"] == ["a release: a coordinator that shows none"]
    assert all((look["why"] is not None) is (look["ends"] == "refused") for look in looks)
    assert len({look["why"] for look in looks if look["why"]}) >= 9


def test_of_a_cohort_owners_count_whom_they_want_to() -> None:
    file = load("admissions.json")
    assert {each["ends"] for each in file["certificates"]} == {"ok", "certificate"}
    found = {tuple(each["peers"]): each["ends"] for each in file["owners"] if each["min_cohort"] == 4}
    assert found[6, 3, 0] == found[6, 0, 3] == "ok"
    assert found[6, 1, 0] == found[6, 0, 0] == "cohort"
    assert found[6, 3, 2] == found[6, 1, 2] == "ok"


def test_a_list_of_revoked_phones_ends_with_what_it_is_called_after() -> None:
    file = load("revocations.json")
    ends = {each["what"]: each["ends"] for each in file["lists"]}
    assert {what for what, end in ends.items() if end == "ok"} == {
        *("nobody is revoked", "one is revoked", "others are revoked"),
        *("the oldest that counts", "of a clock that is ahead"),
    }
    assert [what for what, end in ends.items() if end == "cohort"] == ["too old"]
    assert sum(end == "certificate" for end in ends.values()) == 11
    (unused_bits,) = file["taken_with_one_bit_changed"]
    (der,) = (bytes.fromhex(each["der"]) for each in file["lists"] if each["what"] == "one is revoked")
    assert der[unused_bits - 2 :].startswith(bytes([3, len(der) - unused_bits, 0])), "the head of the signature"
    none, one, others = ([*each["ends"].values()] for each in file["rosters"])
    assert (none, others) == (["ok"] * 9, ["ok"] * 9)
    assert sorted(one) == ["cohort"] * 8 + ["ok"], "all but the one that was revoked, which is told of the others alone"


def test_sums_are_refused_for_every_reason_and_cost_as_written() -> None:
    """Records gain fields, and the last bit of an epsilon may differ: what each step ends with does not."""
    file, now = load("sums.json"), json.loads(text_of("sums.json"))
    steps = [step for story in file["stories"] for step in story["steps"]]
    again = [step for story in now["stories"] for step in story["steps"]]
    for name in ("do", "ends", "sums_today", "used_up", "terms"):
        assert [step[name] for step in steps] == [step[name] for step in again], name
    assert {step["ends"] for step in steps} == {"ok", "replay", *WHY.values()}
    assert {len(step["used_up"]["models"].split()) for step in steps} >= {0, 1, 2, 16}
    assert {step["used_up"]["day"] for step in steps} == {False, True}
    assert file["terms"] == now["terms"]
    for case, mine in zip(file["epsilons"], now["epsilons"], strict=True):
        assert case["sums"] == mine["sums"]
        assert mine["epsilon"] == pytest.approx(case["epsilon"], rel=1e-12, abs=1e-15)


def test_draws_differ_from_seed_to_seed() -> None:
    """Each seed has draws of its own, and nothing is left out of a permutation."""
    drawn = {each["seed"]: each for each in load("draws.json")["seeds"]}
    assert sorted(drawn[1]["permutation_of_5"]) == [0, 1, 2, 3, 4]
    assert all(0 <= value < 1 for each in drawn.values() for value in each["random"])
    assert len({tuple(each["permutation_of_33"]) for each in drawn.values()}) == len(drawn)
