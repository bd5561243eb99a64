"""A phone in private sums with a real coordinator's half: drop-outs, lies, lost connections, and its own sudden end."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.people.round_terms import SumTerms
from device_sdk.people.trained import Pending
from device_sdk.rounds.disclosure import Agreement
from device_sdk.rounds.events import Event
from device_sdk.rounds.masked import MaskedPart
from device_sdk.rounds.participate import Counted, Failed, NotCounted, Step
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import (
    BudgetExceededError,
    CertificateError,
    CohortError,
    ConfigError,
    FileAccessError,
    LayoutMismatchError,
    MienError,
    ModelMismatchError,
    UnreachableError,
    ViolationError,
)
from mien.protocol.rounds import RoundRef, Stage, Wait
from mien.protocol.v1 import rounds_pb2
from mien.secagg.canonical import bitmap_size, pack_members, unpack_members
from mien.secagg.wire import Advertise, Consistency, FullRoster, Proof, Survivors, invite_to_bytes, roster_from_bytes
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec
from tests.device_sdk.bench import REF, TASK, Bench, assignment, layout_of, open_bench
from tests.device_sdk.clocks import HandClock
from tests.device_sdk.private_sum import CONSISTENCY, KEYS, SECONDS, SHARES, UNMASK, UPLOAD, Peer, PrivateSum, Tell
from tests.device_sdk.scripted import BrokenConnectionError, Fleet
from tests.integration.real_fleet import small_model

MASKED = replace(TASK, cohort=CohortSpec(size=7, min_reports=5), privacy=PrivacySpec(min_cohort=5))
CURIOUS = replace(MASKED, privacy=PrivacySpec(min_cohort=5, secure_aggregation="honest_but_curious"))
AGREED = Agreement(min_cohort=4)
STAGES = (KEYS, SHARES, UPLOAD, CONSISTENCY, UNMASK)


class MinuteClock(HandClock):
    """A minute later each time that somebody looks."""

    def monotonic_s(self) -> float:
        self.advance(60.0)
        return self.now_s


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet.create()


@pytest.fixture
def bench(tmp_path: Path, key_store: FileKeyStore, fleet: Fleet) -> Iterator[Bench]:
    with open_bench(tmp_path / "home", key_store, fleet, AGREED) as made:
        made.keep_old_state()
        yield made


Make = Callable[..., PrivateSum]


@pytest.fixture
def make(bench: Bench, fleet: Fleet) -> Iterator[Make]:
    """Make a private sum that the bench's coordinator runs; all end with the test."""
    attempts: list[PrivateSum] = []

    def made(task: TaskSpec = MASKED, **settings: Any) -> PrivateSum:
        attempt = PrivateSum(fleet, task, **settings)
        attempts.append(attempt)
        attempt.script(bench.script)
        return attempt

    yield made
    for attempt in attempts:
        attempt.end()


def trained(bench: Bench) -> list[Pending]:
    """The list will hold what the phone trained, once it has."""
    kept: list[Pending] = []
    tell = bench.participant.tell

    def listen(event: Any) -> None:
        pending = bench.gallery.pending()
        if pending is not None and not kept:
            kept.append(pending)
        tell(event)

    bench.participant = replace(bench.participant, tell=listen)
    return kept


def is_new(bench: Bench) -> bool:
    return not bench.state_is_old() and bench.gallery.pending() is None


def is_untouched(bench: Bench) -> bool:
    return bench.state_is_old() and bench.gallery.pending() is None


def failure(outcome: Step, error: type[MienError]) -> None:
    assert isinstance(outcome, Failed), outcome
    assert type(outcome.error) is error


# --- the whole way ---


def test_where_an_age_is_asked_for_the_phone_says_by_which_rule_peers_counted(bench: Bench, make: Make) -> None:
    agreed = replace(AGREED, min_peer_age_days=1, count_attested_peers=True)
    bench.participant = replace(bench.participant, agreement=agreed)
    make(num_attested=6)
    outcome = bench.participant.step()
    assert isinstance(outcome, Counted)
    assert outcome.peers == (
        "Of 6 phones that this one shared keys with, 0 counted by 1 days of age, and 6 younger ones by an attested key."
    )
    assert outcome.peers in [event.text for event in bench.events]


def test_young_peers_without_an_attested_key_do_not_count(bench: Bench, make: Make) -> None:
    bench.participant = replace(bench.participant, agreement=replace(AGREED, min_peer_age_days=1))
    make(num_attested=6)
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert outcome.code == CohortError.code


@pytest.mark.parametrize("task", [MASKED, CURIOUS], ids=["malicious_server", "honest_but_curious"])
def test_the_sum_holds_the_phones_update_and_nothing_else_shows_it(bench: Bench, make: Make, task: TaskSpec) -> None:
    agreed = replace(AGREED, allow_profiles=("honest_but_curious",))
    bench.participant = replace(bench.participant, agreement=agreed)
    attempt, kept = make(task), trained(bench)
    assert bench.participant.step() == Counted(RoundRef("t1", 2, 1), "next", 7)
    contribution = layout_of(task).parse(kept[0].contribution)
    assert attempt.opening is not None
    opened = attempt.opening.sum
    weight, delta = (contribution.vector[layout_of(task).slices[name]] for name in ("weight", "delta"))
    assert (opened.count, opened.weight) == (7, 6 + weight[0])
    step = 2.0**-attempt.config.numbers.frac_bits
    np.testing.assert_allclose(opened.update, delta, atol=float(weight[0]) * step * 1.01)
    # One word in 2^32 would be equal by chance.
    words = np.frombuffer(attempt.payload, "<u4")[-len(delta) :]
    plain = np.rint(delta.astype(np.float64) / step).astype(np.int64).astype(np.uint32)
    assert np.count_nonzero(words == plain) <= 1
    assert is_new(bench)
    assert len(bench.participant.attempts.participations()) == 1
    assert list(attempt.heard) == [s for s in STAGES if s != CONSISTENCY or task is MASKED]


def test_what_a_task_reveals_goes_behind_the_masked_vector_in_clear(bench: Bench, make: Make) -> None:
    task = replace(
        MASKED,
        method="fedface",
        privacy=PrivacySpec(min_cohort=5, reveals=("class_embeddings",)),
        options={},
    )
    agreed = replace(AGREED, allow_reveal=("class_embeddings",))
    bench.participant = replace(bench.participant, agreement=agreed)
    attempt, kept = make(task), trained(bench)
    assert isinstance(bench.participant.step(), Counted)
    (sent,) = attempt.heard[UPLOAD]
    layout = layout_of(task)
    assert layout.revealed
    assert sent[len(attempt.payload) :] == kept[0].contribution[4 * layout.summed_size :]


def test_a_phone_without_a_part_in_a_stage_waits_on(bench: Bench, make: Make) -> None:
    is_told = threading.Event()

    def nothing(_sum: PrivateSum, _told: bytes) -> bytes:
        is_told.set()
        return b""

    def without_the_phone() -> None:
        is_told.wait(SECONDS)
        attempt.go_on()

    attempt = make(lies=dict.fromkeys((SHARES, UPLOAD), nothing))
    others = threading.Thread(target=without_the_phone)
    others.start()
    outcome = bench.participant.step()
    others.join()
    assert isinstance(outcome, NotCounted)
    assert outcome.code == "late"
    assert is_untouched(bench)


# --- drop-outs ---


@pytest.mark.parametrize("stage", STAGES)
def test_one_peer_lost_at_any_stage_is_survived(bench: Bench, make: Make, stage: int) -> None:
    attempt = make(lost={stage: 1})
    assert isinstance(bench.participant.step(), Counted)
    assert attempt.opening is not None
    assert attempt.opening.sum.count == (6 if stage <= UPLOAD else 7)
    assert is_new(bench)


@pytest.mark.parametrize("stage", STAGES)
def test_too_many_peers_lost_end_the_round_without_change(bench: Bench, make: Make, stage: int) -> None:
    attempt = make(lost={stage: 4})
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert attempt.opening is None
    assert is_untouched(bench)


# --- a coordinator that lies ---


def other_terms(**changes: Any) -> Tell:
    return lambda attempt, _told: invite_to_bytes(replace(attempt.config, **changes))


def tiny_sum(attempt: PrivateSum, _told: bytes) -> bytes:
    return invite_to_bytes(replace(attempt.config, cohort=replace(attempt.config.cohort, n_min=4)))


def edited_roster(edit: Callable[[PrivateSum, FullRoster], FullRoster]) -> Tell:
    def tell(attempt: PrivateSum, told: bytes) -> bytes:
        roster = roster_from_bytes(told)
        assert isinstance(roster, FullRoster)
        return edit(attempt, roster).to_bytes()

    return tell


def swap_two_peers_keys(attempt: PrivateSum, roster: FullRoster) -> FullRoster:
    entries = list(roster.entries)
    a, b = [i for i, entry in enumerate(entries) if entry.id != attempt.phone][:2]
    keys = entries[a].mask_key, entries[b].mask_key
    entries[a], entries[b] = replace(entries[a], mask_key=keys[1]), replace(entries[b], mask_key=keys[0])
    return FullRoster(tuple(entries))


def swap_own_key(attempt: PrivateSum, roster: FullRoster) -> FullRoster:
    stolen = next(entry for entry in roster.entries if entry.id != attempt.phone).mask_key
    return FullRoster(
        tuple(replace(entry, mask_key=stolen) if entry.id == attempt.phone else entry for entry in roster.entries)
    )


def invented_peer(attempt: PrivateSum, roster: FullRoster) -> FullRoster:
    """One peer gives way to a device whose certificate another authority made."""
    stranger = Peer.of(*Fleet.create().member())
    device = attempt.peer_device(stranger, attempt.server.invite)
    entry = Advertise.from_bytes(device.advertise()).entry
    replaced = next(known for known in roster.entries if known.id != attempt.phone)
    kept = [known for known in roster.entries if known is not replaced]
    return FullRoster(tuple(sorted((*kept, entry), key=lambda known: known.id)))


def fewer_survivors(attempt: PrivateSum, told: bytes) -> bytes:
    """The phone is told that a peer is lost which the others are told has survived."""
    topology = attempt.server.topology
    survivors = unpack_members(Survivors.from_bytes(told, topology.n).survivors, topology.n)
    victim = next(index for index in survivors if topology.ids[index] != attempt.phone)
    assert len(pack_members(survivors - {victim}, topology.n)) == bitmap_size(topology.n)
    return Survivors(pack_members(survivors - {victim}, topology.n)).to_bytes()


def true_proof(attempt: PrivateSum, _told: bytes) -> bytes:
    """What the other phones signed: the list that they were told."""
    signed = {
        device: Consistency.from_bytes(message).signature
        for (stage, device), message in attempt.said.items()
        if stage == CONSISTENCY and device != attempt.phone
    }
    return Proof(tuple(sorted(signed.items()))).to_bytes()


def forged_proof(attempt: PrivateSum, _told: bytes) -> bytes:
    return Proof(tuple((device, bytes(64)) for device in attempt.peer_ids())).to_bytes()


@pytest.mark.parametrize(
    ("lies", "error", "last_said"),
    [
        ({KEYS: other_terms(model_sha256=bytes(32))}, ModelMismatchError, None),
        ({KEYS: other_terms(statement_sha256=bytes(32))}, ModelMismatchError, None),
        ({KEYS: other_terms(task_sha256=bytes(32))}, ViolationError, None),
        ({KEYS: other_terms(layout_sha256=bytes(32))}, LayoutMismatchError, None),
        ({KEYS: tiny_sum}, ConfigError, None),
        ({SHARES: edited_roster(swap_two_peers_keys)}, ViolationError, KEYS),
        ({SHARES: edited_roster(swap_own_key)}, ViolationError, KEYS),
        ({SHARES: edited_roster(invented_peer)}, CertificateError, KEYS),
        ({CONSISTENCY: fewer_survivors, UNMASK: true_proof}, ViolationError, CONSISTENCY),
        ({UNMASK: forged_proof}, ViolationError, CONSISTENCY),
    ],
)
def test_a_lie_makes_the_phone_leave_and_nothing_is_released(
    bench: Bench, make: Make, lies: dict[int, Tell], error: type[MienError], last_said: int | None
) -> None:
    attempt = make(lies=lies)
    failure(bench.participant.step(), error)
    assert UNMASK not in attempt.heard
    assert (list(attempt.heard) or [None])[-1] == last_said
    assert bench.script.left_with == [error.code]
    assert is_untouched(bench)


def test_a_phone_holds_the_coordinator_to_the_tasks_own_profile(bench: Bench, make: Make) -> None:
    everything = replace(AGREED, allow_profiles=("honest_but_curious",))
    bench.participant = replace(bench.participant, agreement=everything)
    weaker = PrivateSum(Fleet.create(), CURIOUS).config.cohort
    attempt = make(lies={KEYS: other_terms(cohort=weaker)})
    failure(bench.participant.step(), ConfigError)
    assert attempt.heard == {}


def test_two_stories_at_one_stage_make_the_phone_leave(bench: Bench, make: Make) -> None:
    told: list[bytes] = []

    def another_time(_sum: PrivateSum, message: bytes) -> bytes:
        told.append(message)
        return message if len(told) == 1 else message + b"\0"

    # The stream breaks after KEYS was answered, and the server tells of KEYS once more, otherwise.
    attempt = make(lies={KEYS: another_time}, lose_stream={KEYS})
    hold_stage(bench, attempt, KEYS)
    failure(bench.participant.step(), ViolationError)
    assert len(attempt.heard[KEYS]) == 1
    assert bench.script.left_with == ["violation"]


def hold_stage(bench: Bench, attempt: PrivateSum, stage: int) -> None:
    """Answer the phone's step as received, without going on, so that it hears of the same stage again."""

    def receive(request: rounds_pb2.SendStepRequest) -> rounds_pb2.SendStepReply:
        if request.stage != stage:
            return attempt.send_step(request)
        attempt.heard.setdefault(stage, []).append(request.message)
        return rounds_pb2.SendStepReply(stage=request.stage)

    bench.script.send_step = receive


@pytest.mark.parametrize("attempt_number", [1, 2])
def test_an_attempt_that_was_seen_before_or_lies_before_one_is_no_attempt(
    bench: Bench, make: Make, attempt_number: int
) -> None:
    bench.participant = replace(bench.participant, agreement=replace(AGREED, max_sums_per_model=2))
    make(ref=rounds_pb2.RoundRef(task_id="t1", round=2, attempt=2))
    assert isinstance(bench.participant.step(), Counted)
    again = make(ref=rounds_pb2.RoundRef(task_id="t1", round=2, attempt=attempt_number))
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert again.heard == {}
    assert len(bench.participant.attempts.participations()) == 1


@pytest.mark.parametrize(("task_id", "round_number", "attempt_number"), [("t1", 2, 3), ("t1", 3, 1), ("t2", 2, 1)])
def test_a_phone_trains_for_no_second_sum_over_one_model_and_waits(
    bench: Bench, make: Make, task_id: str, round_number: int, attempt_number: int
) -> None:
    make(ref=rounds_pb2.RoundRef(task_id="t1", round=2, attempt=2))
    assert isinstance(bench.participant.step(), Counted)
    bench.restart()
    again = make(ref=rounds_pb2.RoundRef(task_id=task_id, round=round_number, attempt=attempt_number))
    outcome, trained_before = bench.participant.step(), [event.kind for event in bench.events].count("trained")
    assert isinstance(outcome, Wait)
    assert "waits for another model" in outcome.reason
    assert (again.heard, bench.script.left_with[-1], trained_before) == ({}, "budget_exceeded", 1)


def test_a_phone_says_which_models_its_pictures_have_been_summed_over(bench: Bench, make: Make) -> None:
    """After the sum, not before; not of other pictures, and not where its owner lets these into one more."""
    sum_ = make()
    assert isinstance(bench.participant.step(), Counted)
    bench.restart()
    bench.script.check_in = lambda: rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(retry_after_s=1.0))
    for agreement in (AGREED, replace(AGREED, max_sums_per_model=2), replace(AGREED, max_sums_per_day=1)):
        bench.participant = replace(bench.participant, agreement=agreement)
        assert isinstance(bench.participant.step(), Wait)
    model_id = sum_.config.model_sha256.hex()
    told = [([*each.used_up_models], each.used_up_day) for each in bench.script.check_ins]
    assert told == [([], False), ([model_id], False), ([], False), ([model_id], True)]


def test_a_device_that_joins_in_anothers_place_says_nothing_of_the_others_sums(
    bench: Bench, make: Make, fleet: Fleet
) -> None:
    """A home keeps its log when its key is lost, and the newcomer's list would say which device it was."""
    make()
    assert isinstance(bench.participant.step(), Counted)
    client = bench.participant.client
    client.identity = fleet.identity(client.address, issued=timedelta(minutes=1))
    bench.script.check_in = lambda: rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(retry_after_s=1.0))
    bench.participant = replace(bench.participant, agreement=replace(AGREED, max_sums_per_day=1))
    assert isinstance(bench.participant.step(), Wait)
    assert ([*bench.script.check_ins[-1].used_up_models], bench.script.check_ins[-1].used_up_day) == ([], False)


def test_a_round_that_closed_before_the_phone_gave_out_shares_is_used_up_too(bench: Bench, make: Make) -> None:
    """The others' were enough, and no attempt of it follows."""
    sum_ = make()
    die(bench, "CONSISTENCY", after=False)
    assert [each.is_released for each in bench.participant.attempts.sums()] == [False]
    bench.script.upload_status = lambda: rounds_pb2.UploadStatus(accepted=True)
    bench.script.follow = lambda: iter(
        [rounds_pb2.StageEvent(stage=rounds_pb2.CLOSED, num_reports=6, model_id="ab" * 32)]
    )
    assert isinstance(bench.participant.step(), Counted)
    bench.script.check_in = lambda: rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(retry_after_s=1.0))
    assert isinstance(bench.participant.step(), Wait)
    assert [*bench.script.check_ins[-1].used_up_models] == [sum_.config.model_sha256.hex()]


def test_a_round_that_takes_long_to_close_is_asked_about_again_and_counts(
    bench: Bench, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing has no deadline: the model before may wait for its verdict, or the database be away."""
    sum_ = make()
    told = bench.script.follow

    def takes_long() -> Iterator[rounds_pb2.StageEvent]:
        for event in told():
            if event.stage == rounds_pb2.CLOSED:
                break
            yield event
        for _ in range(100):
            yield rounds_pb2.StageEvent(stage=rounds_pb2.CLOSING)

    monkeypatch.setattr(bench.participant.client, "_clock", MinuteClock())
    bench.script.follow = takes_long
    with pytest.raises(UnreachableError, match="takes long to end"):
        bench.participant.step()
    assert bench.participant.gallery.pending() is not None
    bench.script.upload_status = lambda: rounds_pb2.UploadStatus(accepted=True)
    bench.script.follow = lambda: iter(
        [rounds_pb2.StageEvent(stage=rounds_pb2.CLOSED, num_reports=6, model_id="ab" * 32)]
    )
    assert isinstance(bench.participant.step(), Counted)
    assert bench.participant.gallery.pending() is None
    bench.script.check_in = lambda: rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(retry_after_s=1.0))
    assert isinstance(bench.participant.step(), Wait)
    assert [*bench.script.check_ins[-1].used_up_models] == [sum_.config.model_sha256.hex()]


def test_what_may_be_tried_again_is_not_used_up(bench: Bench, make: Make) -> None:
    """Else a cohort that needs this phone could not try an attempt again whose sum nobody opened."""
    make()
    die(bench, "CONSISTENCY", after=False)
    bench.script.follow = lambda: iter([rounds_pb2.StageEvent(stage=rounds_pb2.ABORTED, reason="too few stayed")])
    assert isinstance(bench.participant.step(), NotCounted)
    bench.script.check_in = lambda: rounds_pb2.CheckInReply(wait=rounds_pb2.Wait(retry_after_s=1.0))
    assert isinstance(bench.participant.step(), Wait)
    assert [*bench.script.check_ins[-1].used_up_models] == []


def test_the_next_attempt_after_an_abort_is_no_second_sum(bench: Bench, make: Make) -> None:
    make()
    die(bench, "CONSISTENCY", after=False)
    bench.script.follow = lambda: iter([rounds_pb2.StageEvent(stage=rounds_pb2.ABORTED, reason="too few stayed")])
    assert isinstance(bench.participant.step(), NotCounted)
    make(ref=rounds_pb2.RoundRef(task_id="t1", round=2, attempt=2))
    assert isinstance(bench.participant.step(), Counted)
    assert [sum_.is_released for sum_ in bench.participant.attempts.sums()] == [False, True]


# --- lost connections ---


@pytest.mark.parametrize("stage", STAGES)
def test_an_answer_whose_receipt_is_lost_is_sent_again_as_it_was(bench: Bench, make: Make, stage: int) -> None:
    attempt = make(lose_reply={stage})
    assert isinstance(bench.participant.step(), Counted)
    assert len(set(attempt.heard[stage])) == 1
    # An upload is asked about first, and need not be sent again.
    assert len(attempt.heard[stage]) == (1 if stage == UPLOAD else 2)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_told_again_hears_the_same_bytes(bench: Bench, make: Make, stage: int) -> None:
    attempt = make(lose_stream={stage})
    assert isinstance(bench.participant.step(), Counted)
    assert all(len(set(said)) == 1 for said in attempt.heard.values())


def lose_the_network(bench: Bench, stage: int) -> None:
    """The next step ends with UnreachableError at a stage, as often as the phone tries; then all is well again."""
    send_step, upload = bench.script.send_step, bench.script.upload

    def broken(request: rounds_pb2.SendStepRequest) -> rounds_pb2.SendStepReply:
        if request.stage == stage:
            raise BrokenConnectionError
        return send_step(request)

    bench.script.send_step = broken
    if stage == UPLOAD:
        bench.script.upload = bench.script.fails_first(999, None, None)
    with pytest.raises(UnreachableError):
        bench.participant.step()
    bench.script.send_step, bench.script.upload = send_step, upload


@pytest.mark.parametrize("stage", STAGES)
def test_a_coordinator_out_of_reach_in_the_midst_of_a_sum_finds_its_keys_kept(
    bench: Bench, make: Make, stage: int
) -> None:
    """It is gone for longer than the phone asks again, and back before the stage ends: nobody has dropped out."""
    attempt, kept = make(), trained(bench)
    lose_the_network(bench, stage)
    assert bench.gallery.pending() is not None
    assert isinstance(bench.participant.step(), Counted)
    assert attempt.opening is not None
    assert attempt.opening.sum.count == 7
    assert all(len(set(said)) == 1 for said in attempt.heard.values())
    assert bench.script.left_with == []
    assert len(kept) == bench.kinds().count("training") == 1
    assert bench.participant.waiting.take(RoundRef("t1", 2, 1)) is None
    assert is_new(bench)


def test_keys_that_wait_end_with_the_deadlines_the_update_and_the_agreement(
    bench: Bench, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: set[int] = set()
    forget = MaskedPart.forget

    def noted(part: MaskedPart) -> None:
        forget(part)
        assert not part.is_under_way
        forgotten.add(part.ref.attempt)

    monkeypatch.setattr(MaskedPart, "forget", noted)
    clock, agreement = bench.participant.clock, bench.participant.agreement
    for attempt in range(1, 4):
        make(ref=rounds_pb2.RoundRef(task_id="t1", round=2, attempt=attempt))
        lose_the_network(bench, SHARES)
        assert forgotten == set(range(1, attempt))
        match attempt:
            case 1:
                clock.sleep(3600.0)
                assert isinstance(outcome := bench.participant.step(), NotCounted)
                assert outcome.code == "late"
            case 2:
                bench.gallery.set_consent("Owner", granted_unix_s=None)
                with pytest.raises(ConfigError):
                    bench.participant.step()
                bench.gallery.set_consent("Owner", granted_unix_s=1)
            case _:
                bench.participant = replace(bench.participant, agreement=replace(agreement, min_cohort=1000))
                assert isinstance(bench.participant.step(), NotCounted)
        assert forgotten == set(range(1, attempt + 1))


def test_keys_wait_on_while_a_disk_does_not_say_who_agrees(
    bench: Bench, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_gallery: object) -> None:
        raise FileAccessError("the disk does not answer; run again")

    attempt = make()
    lose_the_network(bench, SHARES)
    with monkeypatch.context() as patched:
        patched.setattr(type(bench.gallery), "people", away)
        with pytest.raises(FileAccessError):
            bench.participant.step()
    assert bench.script.left_with == []
    assert isinstance(bench.participant.step(), Counted)
    assert attempt.opening is not None


def test_a_phone_whose_vector_is_in_may_be_late_with_the_rest(bench: Bench, make: Make) -> None:
    attempt = make()

    def too_late(request: rounds_pb2.SendStepRequest) -> rounds_pb2.SendStepReply:
        if request.stage == CONSISTENCY:
            attempt.go_on()
        return attempt.send_step(request)

    bench.script.send_step = too_late
    assert isinstance(bench.participant.step(), Counted)
    assert attempt.opening is not None
    assert attempt.phone in attempt.opening.survivors
    assert is_new(bench)


# --- the phone's own end ---


class Killed(BaseException):
    """The process ends here and now."""


class Dying:
    """The phone's connection, on which it dies just before or after it says something."""

    def __init__(self, client: Any, at: str, *, after: bool) -> None:
        self._client, self._at, self._after = client, at, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _die(self, name: str, speak: Callable[[], Any]) -> Any:
        if name == self._at and not self._after:
            raise Killed
        answer = speak()
        if name == self._at:
            raise Killed
        return answer

    def report_trained(self, ref: RoundRef) -> Any:
        return self._die("TRAINED", lambda: self._client.report_trained(ref))

    def send_step(self, ref: RoundRef, stage: Stage, message: bytes) -> Any:
        return self._die(stage.name, lambda: self._client.send_step(ref, stage, message))

    def upload(self, ref: RoundRef, data: bytes, **more: Any) -> Any:
        return self._die("UPLOAD", lambda: self._client.upload(ref, data, **more))


def die(bench: Bench, at: str, *, after: bool) -> None:
    client = bench.participant.client
    dying = Dying(client, at, after=after)
    bench.participant = replace(bench.participant, client=dying)  # type: ignore[arg-type]
    with pytest.raises(Killed):
        bench.participant.step()
    bench.restart()
    bench.participant = replace(bench.participant, client=client)


@pytest.mark.parametrize("after", [False, True])
def test_a_phone_killed_before_it_began_goes_on(bench: Bench, make: Make, after: bool) -> None:
    attempt = make()
    die(bench, "TRAINED", after=after)
    assert isinstance(bench.participant.step(), Counted)
    assert attempt.opening is not None
    assert attempt.opening.sum.count == 7
    assert is_new(bench)


@pytest.mark.parametrize(
    ("at", "after"), [("KEYS", False), ("KEYS", True), ("SHARES", False), ("SHARES", True), ("UPLOAD", False)]
)
def test_a_phone_killed_after_it_began_has_dropped_out(bench: Bench, make: Make, at: str, after: bool) -> None:
    attempt = make()
    die(bench, at, after=after)
    sent = {stage: list(said) for stage, said in attempt.heard.items()}
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert (outcome.code, bench.script.left_with) == ("late", ["late"])
    assert attempt.heard == sent
    assert is_untouched(bench)
    # The others go on without it, and the next attempt begins with fresh keys.
    assert attempt.opening is not None
    assert attempt.phone not in attempt.opening.survivors
    again = make(ref=rounds_pb2.RoundRef(task_id="t1", round=2, attempt=2))
    assert isinstance(bench.participant.step(), Counted)
    assert again.heard[KEYS] != sent.get(KEYS)
    masked = 2 if at == "UPLOAD" else 1
    assert len(bench.participant.attempts.participations()) == masked


@pytest.mark.parametrize(
    ("at", "after"),
    [("UPLOAD", True), ("CONSISTENCY", False), ("CONSISTENCY", True), ("UNMASK", False), ("UNMASK", True)],
)
def test_a_phone_killed_after_its_upload_follows_to_the_end(bench: Bench, make: Make, at: str, after: bool) -> None:
    attempt = make()
    die(bench, at, after=after)
    over = attempt.stage == rounds_pb2.CLOSED
    assert isinstance(bench.participant.step(), Counted)
    # It says that it can say no more, so that nobody waits for it.
    assert bench.script.left_with == ["late"]
    assert over == (at == "UNMASK" and after)
    assert attempt.opening is not None
    assert attempt.phone in attempt.opening.survivors
    assert is_new(bench)
    assert len(bench.participant.attempts.participations()) == 1


@pytest.mark.parametrize("at", ["KEYS", "SHARES", "UPLOAD", "CONSISTENCY", "UNMASK"])
def test_no_secret_of_the_sum_is_ever_on_disk(bench: Bench, make: Make, at: str) -> None:
    drawn: list[bytes] = []

    def draw(size: int) -> bytes:
        drawn.append(secrets.token_bytes(size))
        return drawn[-1]

    bench.participant = replace(bench.participant, random_bytes=draw)
    attempt, kept = make(), trained(bench)
    die(bench, at, after=False)
    on_disk = b"".join(path.read_bytes() for path in bench.folder.rglob("*") if path.is_file())
    assert len(drawn) >= 3
    assert all(secret not in on_disk for secret in drawn)
    assert kept[0].contribution[:64] not in on_disk
    assert not attempt.payload or attempt.payload[:64] not in on_disk


def test_secrets_end_with_the_rounds_deadlines(bench: Bench, make: Make) -> None:
    def much_later(_sum: PrivateSum, told: bytes) -> bytes:
        bench.participant.clock.sleep(3600.0)
        return told

    attempt = make(lies={SHARES: much_later})
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert outcome.code == "late"
    assert list(attempt.heard) == [KEYS]
    assert bench.script.left_with == ["late"]
    assert is_untouched(bench)


def test_consent_withdrawn_in_the_middle_of_a_sum_keeps_the_update_here(bench: Bench, make: Make) -> None:
    def withdraw(_sum: PrivateSum, told: bytes) -> bytes:
        bench.gallery.set_consent("Owner", granted_unix_s=None)
        return told

    attempt = make(lies={UPLOAD: withdraw})
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert UPLOAD not in attempt.heard
    assert bench.participant.attempts.participations() == ()


# --- what the owner agreed to ---


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (TASK, "participation.allow_plain_sums = true"),
        (CURIOUS, 'participation.allow_profiles = ["honest_but_curious"]'),
    ],
    ids=["plain sums", "honest but curious"],
)
def test_less_than_full_secure_aggregation_is_refused_by_default(bench: Bench, task: TaskSpec, words: str) -> None:
    bench.participant = replace(bench.participant, agreement=Agreement(min_cohort=2))
    bench.script.check_in = lambda: assignment(task)
    outcome = bench.participant.step()
    failure(outcome, ConfigError)
    assert isinstance(outcome, Failed)
    assert words in outcome.error.message
    assert bench.script.calls == ["check_in"]
    assert bench.script.left_with == ["config"]


NOISY = replace(
    MASKED,
    trainable=("embedding.*",),
    privacy=PrivacySpec(
        min_cohort=5,
        max_weight=1,
        dp=DpSpec("skellam", noise_multiplier=1.0, epsilon=100.0, delta=1e-5, max_participations=1),
    ),
)


def test_a_phone_adds_its_share_of_noise_and_is_in_no_more_sums_than_promised(bench: Bench, make: Make) -> None:
    attempt, kept = make(NOISY), trained(bench)
    assert isinstance(bench.participant.step(), Counted)
    assert attempt.opening is not None
    assert attempt.opening.sum.metrics == (0.0,) * attempt.config.num_metrics
    again = make(NOISY, ref=rounds_pb2.RoundRef(task_id="t1", round=3, attempt=1))
    told = len(bench.events)
    failure(bench.participant.step(), BudgetExceededError)
    assert again.heard == {}
    assert "training" not in [event.kind for event in bench.events[told:] if isinstance(event, Event)]
    assert len(kept) == 1


def test_an_owners_limit_keeps_a_phone_out_of_sums_without_noise(bench: Bench, make: Make) -> None:
    bench.participant = replace(bench.participant, agreement=replace(AGREED, max_epsilon=8.0))
    attempt = make()
    failure(bench.participant.step(), BudgetExceededError)
    assert attempt.heard == {}
    assert bench.script.left_with == ["budget_exceeded"]
    assert is_untouched(bench)


def test_terms_that_do_not_keep_the_promised_noise_are_refused(bench: Bench, make: Make) -> None:
    silent = PrivateSum(Fleet.create(), MASKED).config.noise
    attempt = make(NOISY, lies={KEYS: other_terms(noise=silent)})
    failure(bench.participant.step(), ViolationError)
    assert attempt.heard == {}


@pytest.mark.parametrize("numbers", [{"frac_bits": 0}, {"coordinate_clip": 0.5}, {"ring_bits": 24, "frac_bits": 4}])
def test_rounding_that_would_outweigh_the_promised_noise_is_refused(
    bench: Bench, make: Make, numbers: dict[str, Any]
) -> None:
    planned = PrivateSum(Fleet.create(), NOISY).config.numbers
    attempt = make(NOISY, lies={KEYS: other_terms(numbers=replace(planned, **numbers))})
    failure(bench.participant.step(), ViolationError)
    assert attempt.heard == {}


def test_a_pending_private_sum_survives_a_restart_as_it_was(bench: Bench, make: Make) -> None:
    make()
    die(bench, "TRAINED", after=False)
    pending, model = bench.gallery.pending(), small_model()
    assert pending is not None
    assert pending.terms is not None
    terms = SumTerms(MASKED, model.model_id, model.spec, layout_of(MASKED), pictures=pending.terms.pictures)
    assert pending.terms == terms
    assert (pending.task_id, pending.round, pending.attempt) == (REF.task_id, REF.round, REF.attempt)


def test_a_mixtures_sum_is_joined_with_ten_times_the_owners_floor() -> None:
    """So the coordinator's invitation and the peers that count are held to it as well."""
    cohort, model = CohortSpec(size=200, min_reports=30), small_model()
    task = TaskSpec("mixed", method="statistics", rounds=2, cohort=cohort, options={"mixture": True})
    for options, floor in (({"mixture": True}, 160), ({}, 30)):
        terms = SumTerms(replace(task, options=options), model.model_id, model.spec, layout_of(MASKED))
        assert terms.policy(16).min_cohort == floor
