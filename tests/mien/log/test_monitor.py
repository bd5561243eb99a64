"""What a monitor finds: nothing in an honest log, and each kind of lie by its name."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mien.errors import TransparencyError
from mien.log.checkpoints import LOG, WITNESS, Checkpoint, Note, NoteSigner
from mien.log.entries import (
    certificate_entry,
    release_entry,
    release_sought,
    result_entry,
    roster_entry,
    round_entry,
    task_entry,
)
from mien.log.merkle import tree_root
from mien.log.monitor import examine
from tests.mien.log.test_merkle import Tree

SIGNER = NoteSigner.of(LOG, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
REGISTRAR = NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64))))
HASHES = dict.fromkeys(("task_sha256", "model_sha256", "layout_sha256", "statement_sha256"), "1" * 64)


def attempt(number):
    return [
        round_entry("ab" * 16, number, 1, **HASHES).data,
        roster_entry("ab" * 16, number, 1, [bytes([number]) * 32]).data,
    ]


HONEST = [
    release_entry("c" * 64, None, 1.0).data,
    *attempt(1),
    certificate_entry("d" * 64).data,
    *(entry for number in range(2, 9) for entry in attempt(number)),
]


def note(entries, *signers):
    text = Checkpoint(SIGNER.key.name, len(entries), tree_root(Tree(entries).node, len(entries))).text
    return str(Note(text, tuple(each.sign(text, 1_800_000_000) for each in (SIGNER, *signers))))


def faults(entries, newest=None, **known):
    return list(examine(entries, newest or note(entries), SIGNER.key, **known).faults)


@pytest.mark.parametrize("size", range(len(HONEST) + 1))
def test_an_honest_log_is_without_fault_under_every_earlier_checkpoint(size):
    found = examine(HONEST, note(HONEST, REGISTRAR), SIGNER.key, witness=REGISTRAR.key, earlier=[note(HONEST[:size])])
    assert found.faults == ()
    assert found.cosigned_unix_s == 1_800_000_000
    assert found.counts == {"release": 1, "round": 8, "roster": 8, "certificate": 1}


def test_entries_behind_the_checkpoint_are_no_fault():
    assert faults(HONEST, note(HONEST[:5])) == []


def test_a_fork_is_found_by_what_others_saw():
    other = [HONEST[0], certificate_entry("e" * 64).data, *HONEST[2:6]]
    for kept in (
        {"earlier": [note(other)]},
        {"kept": [{"shown": {"note": note(other)}, "statement": HONEST[1].decode()}]},
    ):
        (fault,) = faults(HONEST, **kept)
        assert "another history of 6 entries was signed" in fault


def test_what_the_log_did_not_sign_accuses_nobody():
    other = str(Note(Note.parse(note([b"made up"])).text, Note.parse(note(HONEST)).unverified_signatures))
    assert faults(HONEST, earlier=[other]) == []


def test_a_log_that_was_cut_is_found():
    assert any("shows 3 entries, and signed 18" in fault for fault in faults(HONEST[:3], note(HONEST)))
    assert any("it was cut" in fault for fault in faults(HONEST[:3], earlier=[note(HONEST[:4])]))


def test_an_edited_entry_is_found():
    edited = [*HONEST[:3], certificate_entry("f" * 64).data, *HONEST[4:]]
    assert any("a forked log" in fault for fault in faults(edited, note(HONEST)))


def test_a_roster_without_a_statement_is_an_unlogged_round():
    (fault,) = faults([HONEST[0], *HONEST[2:]])
    assert "entry 1: an unlogged round" in fault
    (fault,) = faults([HONEST[0], HONEST[2], HONEST[1]])
    assert "entry 1: an unlogged round" in fault


def test_a_statement_that_a_phone_was_told_and_nobody_logged_is_found():
    told = {"round": "t/1/1", "statement": round_entry("ab" * 16, 99, 1, **HASHES).data.decode(), "shown": None}
    (fault,) = faults(HONEST, kept=[told])
    assert "an unlogged round" in fault


@pytest.mark.parametrize("shown", [{"note": "no note"}, {"note": ""}, {}, "note", [1], {"note": 5}], ids=range(6))
def test_evidence_of_a_lie_that_is_no_note_stops_no_monitor(shown: object) -> None:
    told = {"round": "t/1/1", "statement": HONEST[1].decode(), "seen": {"note": note(HONEST[:4])}, "shown": shown}
    assert faults(HONEST, kept=[told]) == []
    assert any("it was cut" in fault for fault in faults(HONEST[:3], kept=[told]))


@pytest.mark.parametrize(("model", "population", "is_there"), [("c", "any", True), ("d", "any", False)])
def test_a_release_that_a_phone_was_told_and_nobody_logged_is_found(model, population, is_there):
    told = {"round": "release of it", "statement": release_sought(model * 64, population).data.decode(), "shown": None}
    found = faults(HONEST, kept=[told])
    assert found == ([] if is_there else ["an unlogged release: a phone was to use a model by it (release of it)"])


def test_a_release_to_others_is_not_the_phone_s():
    log = [*HONEST, release_entry("d" * 64, "others", 1.0).data]
    for population, number in (("others", 0), ("mine", 1)):
        told = {"statement": release_sought("d" * 64, population).data.decode()}
        assert len(faults(log, kept=[told])) == number


def test_a_second_statement_of_a_round_and_what_is_no_entry_are_found():
    twice = round_entry("ab" * 16, 1, 1, **(HASHES | {"statement_sha256": "2" * 64})).data
    assert any("a second statement" in fault for fault in faults([*HONEST, twice]))
    assert any("entry 18: the log holds an entry that no program writes" in fault for fault in faults([*HONEST, b"{}"]))


def test_a_missing_cosignature_is_told():
    (fault,) = faults(HONEST, witness=REGISTRAR.key)
    assert "not signed by mien-witness" in fault


def test_a_checkpoint_of_another_key_is_none():
    with pytest.raises(TransparencyError):
        examine(HONEST, note(HONEST), REGISTRAR.key)


def named(*letters):
    return [letter * 64 for letter in letters]


FIRST, SECOND, THIRD, OTHER = named("c", "3", "4", "5")
TASK = "ab" * 16


def statement(number, model, *, task=TASK, attempt=1):
    return round_entry(task, number, attempt, **(HASHES | {"model_sha256": model})).data


def result(number, model, *, task=TASK, attempt=1):
    return result_entry(task, number, attempt, model_sha256=model).data


FOLLOWED = [
    HONEST[0],  # releases FIRST
    task_entry(TASK, FIRST).data,
    statement(1, FIRST),
    statement(1, FIRST, attempt=2),
    result(1, SECOND, attempt=2),
    statement(2, SECOND),
    statement(3, SECOND),  # a cohort that began beside the second
    result(2, THIRD),
    statement(4, FIRST),  # the gates sent it back
]


def findings(entries):
    return examine(entries, note(entries), SIGNER.key)


def test_models_are_followed_from_the_release_through_the_rounds():
    goes_on = [task_entry("cd" * 16, THIRD).data, statement(1, THIRD, task="cd" * 16)]
    assert (findings([*FOLLOWED, *goes_on]).faults, findings([*FOLLOWED, *goes_on]).remarks) == ((), ())


@pytest.mark.parametrize(
    ("lie", "fault"),
    [
        (statement(5, OTHER), f"entry 9: round {TASK}/5/1 trains model {OTHER}"),
        (statement(1, FIRST, task="cd" * 16), "entry 9: round " + "cd" * 16 + "/1/1 is of a task whose first model"),
        (task_entry(TASK, OTHER).data, f"entry 9: task {TASK} begins a second time"),
        (result(9, OTHER), "entry 9: an unlogged round, whose result"),
        (result(2, OTHER), f"entry 9: a second result of round {TASK}/2/1"),
    ],
    ids=["a model of nobody", "a task without a beginning", "a second beginning", "no statement", "a second result"],
)
def test_a_model_out_of_nowhere_is_found(lie, fault):
    (found,) = findings([*FOLLOWED, lie]).faults
    assert found.startswith(fault)


def test_a_round_may_not_train_what_it_makes_itself_nor_another_tasks_model():
    assert len(findings([*FOLLOWED[:2], statement(1, SECOND), result(1, SECOND)]).faults) == 1
    other = [task_entry("cd" * 16, FIRST).data, statement(1, SECOND, task="cd" * 16)]
    assert len(findings([*FOLLOWED, *other]).faults) == 1


def test_a_task_of_a_model_that_came_from_elsewhere_is_remarked():
    found = findings([*FOLLOWED, task_entry("cd" * 16, OTHER).data])
    assert found.faults == ()
    assert found.remarks == (f"task {'cd' * 16} begins with model {OTHER}, which no release or round before it names",)


def test_tasks_from_before_the_log_named_models_are_counted_and_not_followed():
    found = findings([*HONEST, task_entry("cd" * 16, FIRST).data, *attempt(9)])
    assert found.faults == ()
    assert found.remarks == ("1 tasks began before the log named models; theirs are not followed",)
