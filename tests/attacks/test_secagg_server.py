"""A coordinator that lies: whatever it tells whom, a device releases nothing that opens more than one whole sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mien.errors import (
    CohortError,
    ConfigError,
    CorruptDataError,
    LateError,
    LayoutMismatchError,
    MienError,
    ModelMismatchError,
    ReplayError,
    VersionError,
    ViolationError,
)
from mien.secagg import CohortTerms, DevicePolicy, MemoryLog, Profile, RoundConfig, ServerRound, shamir
from mien.secagg.canonical import pack_members
from mien.secagg.keys import SEALED_BYTES, AgreementKey, MaskKey, commitment_b
from mien.secagg.roster import RosterTree
from mien.secagg.wire import Advertise, Delivered, Proof, ShareKind, Shares, Survivors, Unmask, invite_to_bytes
from tests.mien.secagg.cohort import POLICY, Cohort, assignment_of, drbg, make_config, make_device, people, verify

N = 9  # t = 6 of 8 neighbours


def at_mask(config: RoundConfig | None = None, **device: Any) -> tuple[Cohort, dict[bytes, bytes]]:
    """Return a cohort that is about to send its vectors, and message 4 for each."""
    cohort = Cohort.of(config or make_config(N), people(N), **device)
    return cohort, cohort.share(cohort.advertise())


def at_survivors(lost: int | None = None, config: RoundConfig | None = None, **device: Any) -> tuple[Cohort, bytes]:
    """Return a cohort that is about to hear of the survivors, and message 6."""
    cohort, delivered = at_mask(config, **device)
    cohort.lost = {5: {sorted(cohort.devices)[lost]}} if lost is not None else {}
    return cohort, cohort.mask(delivered)


def assert_left(cohort: Cohort, device: bytes) -> None:
    """After a lie the device is out: it answers nothing any more, not even the truth."""
    target = cohort.devices[device]
    assert target.stage == "Left"
    for ask in (target.share, target.agree, target.unmask):
        with pytest.raises(LateError, match="left this attempt"):
            ask(b"\x02\x06")


# The invite: what a device accepts at all


def test_tiny_sums_are_refused_by_the_devices_own_floor() -> None:
    config = make_config(N, n_min=3)
    with pytest.raises(ConfigError, match="16 or more"):
        make_device(config, people(1)[0], policy=DevicePolicy())
    make_device(make_config(40, n_min=16), people(1)[0], policy=DevicePolicy())


def test_the_cheaper_profile_needs_the_owners_agreement() -> None:
    config = make_config(N, profile=Profile.HONEST_BUT_CURIOUS)
    with pytest.raises(ConfigError, match="honest_but_curious"):
        make_device(config, people(1)[0], policy=DevicePolicy(min_cohort=3))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model_sha256": b"x" * 32}, ModelMismatchError),
        ({"statement_sha256": b"x" * 32}, ModelMismatchError),
        ({"layout_sha256": b"x" * 32}, LayoutMismatchError),
        ({"size": 8}, LayoutMismatchError),
        ({"num_metrics": 1}, LayoutMismatchError),
        ({"task_sha256": b"x" * 32}, ViolationError),
        ({"task_id": b"x" * 16}, ViolationError),
    ],
)
def test_another_model_task_graph_or_layout_is_refused(changes: dict[str, Any], error: type[MienError]) -> None:
    config = make_config(N)
    log = MemoryLog()
    with pytest.raises(error):
        make_device(replace(config, **changes), people(1)[0], assignment=assignment_of(config), log=log)
    assert not log.begun, "a refused invite must not use up the attempt"


def test_a_sum_that_could_wrap_is_refused_before_anything_is_trained_on_it() -> None:
    invite = bytearray(ServerRound(make_config(N), verify=verify).invite)
    config = make_config(N)
    position = invite.index(bytes([config.numbers.ring_bits, config.numbers.frac_bits]))
    invite[position + 1] = 28
    with pytest.raises(ConfigError, match="ring of 32 bits"):
        make_device(config, people(1)[0], invite=bytes(invite))


@pytest.mark.parametrize("order", [(7, 1), (7, 0), (6, 9), (0, 0)])
def test_an_attempt_that_is_not_new_is_refused(order: tuple[int, int]) -> None:
    log = MemoryLog()
    make_device(make_config(N), people(1)[0], log=log)
    with pytest.raises(ReplayError):
        make_device(make_config(N, round=order[0], attempt=order[1]), people(1)[0], log=log)
    make_device(make_config(N, round=7, attempt=2), people(1)[0], log=log)
    make_device(make_config(N, round=8, attempt=0), people(1)[0], log=log)


# Different stories for different devices


@pytest.mark.parametrize(
    "changes",
    [{"model_sha256": b"x" * 32}, {"attempt": 2}, {"cohort": CohortTerms(Profile.MALICIOUS_SERVER, 4, N)}],
    ids=["model", "attempt", "terms"],
)
def test_a_device_that_was_told_otherwise_has_nothing_in_common_with_the_others(changes: dict[str, Any]) -> None:
    """Its keys are signed under another configuration, so the others leave rather than share with it."""
    config = make_config(N)
    cohort, victim = Cohort.of(config, people(N)), people(N)[4]
    other = replace(config, **changes)
    lied_to = make_device(other, victim)
    message = lied_to.advertise()
    with pytest.raises(ViolationError, match="another round"):
        cohort.server.accept_advertise(victim.id, message)  # an honest server notices at once
    entries = [Advertise.from_bytes(d.advertise()).entry for i, d in cohort.devices.items() if i != victim.id]
    tree = RosterTree.of([*entries, Advertise.from_bytes(message).entry])
    for device in (lied_to, *[d for i, d in cohort.devices.items() if i != victim.id]):
        roster = tree.messages(tree.topology(other if device is lied_to else config))[victim.id]
        with pytest.raises(ViolationError):
            device.share(roster)
        assert device.stage == "Left"


def test_exchanged_keys_are_noticed_by_their_owner_and_by_everybody_else() -> None:
    """The classic attack: the server puts its own keys in the victim's place."""
    cohort = Cohort.of(make_config(N), people(N))
    rosters = cohort.advertise()
    message = rosters[people(N)[0].id]
    victim = people(N)[0].id
    position = message.index(victim) + 16
    forged = message[:position] + AgreementKey(b"s" * 32).public + message[position + 32 :]
    for device in cohort.devices.values():
        with pytest.raises(ViolationError):
            device.share(forged)
        assert device.stage == "Left"


def test_split_rosters_lead_to_nothing_that_opens() -> None:
    """Half of the devices get a roster without device 0: shares sealed under one R do not open under the other."""
    config = make_config(N, n_min=3)
    cohort = Cohort.of(config, people(N))
    with_all = cohort.advertise()
    smaller = ServerRound(config, verify=verify)
    _, *others = sorted(cohort.devices)
    for device in others:
        smaller.accept_advertise(device, cohort.wire[1, device])
    without = smaller.close_keys()
    half = others[:4]
    shares = {d: cohort.devices[d].share((without if d in half else with_all)[d]) for d in sorted(cohort.devices)}
    for device in shares:
        server, wrong = (smaller, cohort.server) if device in half else (cohort.server, smaller)
        server.accept_shares(device, shares[device])
        with pytest.raises(MienError):
            wrong.accept_shares(device, shares[device])
    # It then claims that all shared, and hands the ciphertexts of one side over to the other.
    victim = half[0]
    sealed = []
    for index in smaller.topology.graph.neighbours(others.index(victim)):
        sender = others[index]
        x_here = smaller.topology.graph.share_index(index, others.index(victim))
        x_there = x_here if sender in half else x_here + 1  # the first device comes before the victim there
        sealed.append(replace(Shares.from_bytes(shares[sender]).sealed[x_there - 1], x=x_here))
    message = Delivered(pack_members(range(N - 1), N - 1), tuple(sealed)).to_bytes()
    with pytest.raises(ViolationError, match="only 3 neighbours' shares open"):
        cohort.devices[victim].mask(message, cohort.addends[victim])
    assert_left(cohort, victim)


# Who shared (message 4)


def delivered_lies(message: bytes, cohort: Cohort, device: bytes) -> dict[str, Delivered]:
    honest = Delivered.from_bytes(message, N)
    own = sorted(cohort.devices).index(device)
    sealed = list(honest.sealed)
    garbage = [replace(s, ciphertext=bytes(SEALED_BYTES)) for s in sealed]
    return {
        "without the device": replace(honest, sharers=pack_members(set(range(N)) - {own}, N)),
        "a ciphertext missing": replace(honest, sealed=tuple(sealed[1:])),
        "a ciphertext twice": replace(honest, sealed=(*sealed, sealed[0])),
        "a sharer hidden, its ciphertext kept": replace(
            honest, sharers=pack_members(set(range(N)) - {(own + 1) % N}, N)
        ),
        "an index changed": replace(honest, sealed=(replace(sealed[0], x=sealed[0].x % 8 + 1), *sealed[1:])),
        "all ciphertexts exchanged in a circle": replace(
            honest, sealed=tuple(replace(s, ciphertext=sealed[(i + 1) % 8].ciphertext) for i, s in enumerate(sealed))
        ),
        "three spoiled": replace(honest, sealed=(*garbage[:3], *sealed[3:])),
    }


def test_lies_about_who_shared_end_the_attempt() -> None:
    names = list(delivered_lies(*_delivered()))
    for name in names:
        cohort, delivered = at_mask()
        device = sorted(cohort.devices)[2]
        lie = delivered_lies(delivered[device], cohort, device)[name]
        with pytest.raises(ViolationError):
            cohort.devices[device].mask(lie.to_bytes(), cohort.addends[device])
        assert_left(cohort, device)
    assert len(names) == 7


def _delivered() -> tuple[bytes, Cohort, bytes]:
    cohort, delivered = at_mask()
    device = sorted(cohort.devices)[2]
    return delivered[device], cohort, device


def test_a_crowd_of_sharers_below_the_floor_is_refused() -> None:
    config = make_config(N, n_min=8)
    cohort, delivered = at_mask(config)
    device = sorted(cohort.devices)[0]
    honest = Delivered.from_bytes(delivered[device], N)
    few = Delivered(pack_members(range(7), N), honest.sealed[:6])
    with pytest.raises(CohortError):
        cohort.devices[device].mask(few.to_bytes(), cohort.addends[device])
    assert_left(cohort, device)


# Who survived (message 6)


def survivors_message(members: set[int]) -> bytes:
    return Survivors(pack_members(members, N)).to_bytes()


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({0}, CohortError),
        ({0, 1, 2, 3, 4, 5}, CohortError),  # five neighbours of the six that are needed
        ({1, 2, 3, 4, 5, 6, 7}, ViolationError),  # without the device
        (set(), ViolationError),
    ],
    ids=["alone", "below t", "without itself", "nobody"],
)
def test_small_or_foreign_lists_of_survivors_end_the_attempt(members: set[int], error: type[MienError]) -> None:
    cohort, _ = at_survivors()
    device = sorted(cohort.devices)[0]
    with pytest.raises(error):
        cohort.devices[device].agree(survivors_message(members))
    assert_left(cohort, device)


def test_survivors_must_have_shared() -> None:
    cohort = Cohort.of(make_config(N), people(N))
    cohort.lost = {3: {sorted(cohort.devices)[8]}}
    cohort.mask(cohort.share(cohort.advertise()))
    device = sorted(cohort.devices)[0]
    with pytest.raises(ViolationError, match="strangers"):
        cohort.devices[device].agree(survivors_message(set(range(N))))
    assert_left(cohort, device)


def test_the_floor_holds_for_the_sum_that_is_opened() -> None:
    """n_min = 9 of 9: a list of 8 is refused, though t would do."""
    cohort, _ = at_survivors(config=make_config(N, n_min=N))
    device = sorted(cohort.devices)[0]
    with pytest.raises(CohortError, match="9 are needed"):
        cohort.devices[device].agree(survivors_message(set(range(8))))
    assert_left(cohort, device)


def split_view(lost: int) -> tuple[Cohort, dict[bytes, bytes], set[int], set[int]]:
    """Tell half of the devices that `lost` survived, and the others that it did not; return their signatures."""
    cohort, _ = at_survivors()
    order = sorted(cohort.devices)
    everybody, fewer = set(range(N)), set(range(N)) - {lost}
    signatures = {}
    for index, device in enumerate(order):
        if index != lost:
            signatures[device] = cohort.devices[device].agree(survivors_message(everybody if index % 2 else fewer))
    return cohort, signatures, everybody, fewer


def test_two_stories_about_survivors_never_gather_enough_signatures() -> None:
    """The attack on the first protocol without this round: b from one half, the mask key from the other."""
    cohort, signatures, *_ = split_view(lost=8)
    assert len(signatures) == 8
    for device, target in [(d, cohort.devices[d]) for d in signatures]:
        for chosen in (list(signatures), [d for d in signatures if d != device]):
            pairs = [(d, signatures[d][2:]) for d in chosen if d != device][:6]
            if target.stage != "Agreed":
                break
            with pytest.raises(ViolationError):
                target.unmask(Proof(tuple(pairs)).to_bytes())
        assert_left(cohort, device)


def proof_lies(cohort: Cohort, device: bytes) -> dict[str, Proof]:
    order = sorted(cohort.devices)
    honest = [(d, cohort.wire[7, d][2:]) for d in order if d != device]
    own = (device, cohort.wire[7, device][2:])
    return {
        "five": Proof(tuple(honest[:5])),
        "none": Proof(()),
        "five and itself": Proof((*honest[:5], own)),
        "five and one twice": Proof((*honest[:5], honest[0])),
        "five and a stranger": Proof((*honest[:5], (b"?" * 16, honest[0][1]))),
        "signatures exchanged": Proof(tuple((d, honest[(i + 1) % 6][1]) for i, (d, _) in enumerate(honest[:6]))),
        "one flipped": Proof((*honest[:5], (honest[5][0], bytes([honest[5][1][0] ^ 1]) + honest[5][1][1:]))),
        "eight, one flipped": Proof((*honest[:7], (honest[7][0], bytes(64)))),
    }


def test_fewer_proofs_than_t_release_nothing() -> None:
    names = list(proof_lies(*_agreed()))
    for name in names:
        cohort, device = _agreed()
        with pytest.raises(ViolationError):
            cohort.devices[device].unmask(proof_lies(cohort, device)[name].to_bytes())
        assert_left(cohort, device)
    assert len(names) == 8


def _agreed() -> tuple[Cohort, bytes]:
    cohort, survivors = at_survivors()
    cohort.agree(survivors)
    return cohort, sorted(cohort.devices)[3]


def test_proofs_of_another_round_are_worth_nothing() -> None:
    (cohort, device), other = _agreed(), Cohort.of(make_config(N, round=8), people(N))
    other.agree(other.mask(other.share(other.advertise())))
    pairs = tuple((d, other.wire[7, d][2:]) for d in sorted(other.devices) if d != device)
    with pytest.raises(ViolationError):
        cohort.devices[device].unmask(Proof(pairs).to_bytes())
    assert_left(cohort, device)


# What is released


@pytest.mark.parametrize("profile", Profile)
def test_never_both_shares_of_one_neighbour_and_never_twice(profile: Profile) -> None:
    cohort, survivors = at_survivors(lost=4, config=make_config(N, profile=profile))
    order = sorted(cohort.devices)
    if profile.has_consistency_round:
        proofs = cohort.agree(survivors)

    def ask(device: bytes) -> bytes:
        target = cohort.devices[device]
        return target.unmask(proofs[device]) if profile.has_consistency_round else target.agree(survivors)

    answers = {device: ask(device) for device in cohort.alive(9)}
    assert len(answers) == 8
    for device, answer in answers.items():
        neighbours = [i for i in range(N) if order[i] != device]
        kinds = [kind for kind, _ in Unmask.from_bytes(answer).shares]
        assert kinds == [ShareKind.PAIR_KEY if i == 4 else ShareKind.SELF_MASK for i in neighbours]
        with pytest.raises(ReplayError):
            ask(device)
        assert cohort.devices[device].stage == "Done"


def test_that_shares_went_out_is_remembered_before_they_do() -> None:
    """A log that cannot write, or says that they went out before a restart, keeps them in."""
    cohort, device = _agreed()
    pairs = tuple((d, cohort.wire[7, d][2:]) for d in sorted(cohort.devices) if d != device)
    log = MemoryLog()
    log.unmasked.add(cohort.config.attempt_id)
    cohort.devices[device]._log = log
    with pytest.raises(ReplayError):
        cohort.devices[device].unmask(Proof(pairs).to_bytes())
    assert_left(cohort, device)


def test_no_step_may_be_skipped() -> None:
    """The shortest way to an answer: the list of survivors before the vector, the proof before the list."""
    cohort, delivered = at_mask()
    order = sorted(cohort.devices)
    with pytest.raises(ViolationError, match="skipped or repeated"):
        cohort.devices[order[0]].agree(survivors_message(set(range(N))))
    with pytest.raises(ViolationError, match="skipped or repeated"):
        cohort.devices[order[1]].unmask(Proof(()).to_bytes())
    cohort.devices[order[2]].mask(delivered[order[2]], cohort.addends[order[2]])
    with pytest.raises(ViolationError, match="skipped or repeated"):
        cohort.devices[order[2]].mask(delivered[order[2]], cohort.addends[order[2]])
    assert_left(cohort, order[0])


def test_every_message_of_another_round_or_attempt_is_refused() -> None:
    """What round 8, or attempt 2, said word for word, sent in round 7."""
    for changes in ({"round": 8}, {"attempt": 2}, {"task_id": b"u" * 16}):
        config, foreign_config = make_config(N), make_config(N, **changes)
        foreign = Cohort.of(foreign_config, people(N))
        foreign.run()
        device = sorted(foreign.devices)[1]

        victim = make_device(config, people(N)[[p.id for p in people(N)].index(device)])
        victim.advertise()
        with pytest.raises(ViolationError):
            victim.share(foreign.wire[2, device])

        cohort, _ = at_mask()
        with pytest.raises(ViolationError):
            cohort.devices[device].mask(foreign.wire[4, device], cohort.addends[device])

        cohort, survivors = at_survivors()
        assert foreign.wire[6, device] == survivors, "this one holds no key and says the same"
        cohort.agree(survivors)
        with pytest.raises(ViolationError):
            cohort.devices[device].unmask(foreign.wire[8, device])


def test_an_attempt_that_was_retried_can_no_longer_be_unmasked() -> None:
    """After a second attempt begins, the first one's secrets are gone; keys are fresh, the ledger counts both."""
    log = MemoryLog()
    cohort, survivors = at_survivors()
    device = sorted(cohort.devices)[0]
    first = cohort.devices[device]
    first.forget()
    with pytest.raises(LateError):
        first.agree(survivors)
    config = make_config(N)
    logged = make_device(config, people(1)[0], log=log)
    entry = Advertise.from_bytes(logged.advertise()).entry
    retried = make_device(replace(config, attempt=2), people(1)[0], log=log, random_bytes=drbg("retry"))
    again = Advertise.from_bytes(retried.advertise()).entry
    assert len({entry.mask_key, entry.share_key, again.mask_key, again.share_key}) == 4


def test_participations_are_counted_when_a_vector_goes_out_not_before() -> None:
    log = MemoryLog()
    config = make_config(N)
    identity = people(1)[0]
    cohort = Cohort.of(config, people(N))
    cohort.devices[identity.id] = make_device(config, identity, log=log)
    delivered = cohort.share(cohort.advertise())
    assert log.masked == []
    cohort.mask(delivered)
    assert log.masked == [config.attempt_id]


# What remains on the device


def secrets_of(state: object) -> list[bytearray]:
    held = getattr(state, "held", {})
    return [*held.values(), *([state.b] if hasattr(state, "b") else [])]


def test_secrets_are_overwritten_when_an_attempt_ends() -> None:
    cohort, delivered = at_mask()
    device = sorted(cohort.devices)[0]
    target = cohort.devices[device]
    (b,) = secrets_of(target._state)
    assert any(b)
    target.mask(delivered[device], cohort.addends[device])
    assert not any(b), "b is not needed once the vector is masked"
    assert not hasattr(target._state, "mask_key")
    held = secrets_of(target._state)
    assert len(held) == 8
    assert all(any(share) for share in held)
    target.forget()
    assert not any(any(share) for share in held)
    assert target.stage == "Left"
    assert repr(target).count("DeviceRound") == 1


def test_states_do_not_show_secrets() -> None:
    cohort, delivered = at_mask()
    device = sorted(cohort.devices)[0]
    shown = repr(cohort.devices[device]._state)
    cohort.devices[device].mask(delivered[device], cohort.addends[device])
    shown += repr(cohort.devices[device]._state) + repr(cohort.devices[device])
    assert "bytearray" not in shown
    assert "b=" not in shown


# The server's own arithmetic: what it could do with what it holds


def test_what_the_server_holds_below_t_opens_nothing() -> None:
    """Five answers of six: five shares of each secret lead to no b that fits, and the round ends with a named error."""
    cohort, survivors = at_survivors(lost=4)
    proofs = cohort.agree(survivors)
    for device in sorted(proofs)[:5]:
        cohort.server.accept_unmask(device, cohort.devices[device].unmask(proofs[device]))
    assert not cohort.server.can_open
    with pytest.raises(CohortError, match="nothing was opened"):
        cohort.server.open()
    topology = cohort.server.topology
    for owner in range(N):
        shares = cohort.server._shares_of(owner)
        by_x = {topology.graph.share_index(owner, holder): share for holder, share in shares.items()}
        assert len(by_x) <= 5
        guess = shamir.combine(by_x, len(by_x))
        if owner == 4:
            assert MaskKey(guess).public != cohort.server._peers[topology.ids[owner]].entry.mask_key
        else:
            assert commitment_b(guess, topology.binding, topology.ids[owner]) != cohort.server._commitments[owner]


def test_an_invite_cannot_ask_for_a_threshold_below_the_devices_own_rule() -> None:
    config = replace(make_config(300), cohort=CohortTerms(Profile.MALICIOUS_SERVER, 16, 300, 80, 42))
    cohort = Cohort.of(config, people(300)[:270])
    rosters = cohort.advertise()
    device = sorted(cohort.devices)[0]
    with pytest.raises(ConfigError, match="do not protect"):
        cohort.devices[device].share(rosters[device])
    assert_left(cohort, device)


def test_an_owner_may_ask_for_a_higher_threshold() -> None:
    cohort = Cohort.of(make_config(N), people(N), policy=replace(POLICY, min_threshold=7))
    rosters = cohort.advertise()
    device = sorted(cohort.devices)[0]
    with pytest.raises(ConfigError, match="7 or more"):
        cohort.devices[device].share(rosters[device])


def test_truncated_and_foreign_bytes_at_every_step_end_the_attempt() -> None:
    for junk in (b"", b"\x02", b"\x02\x02", b"\x01\x02" + bytes(50), invite_to_bytes(make_config(N))):
        cohort, _ = at_survivors()
        device = sorted(cohort.devices)[0]
        with pytest.raises((CorruptDataError, VersionError)):
            cohort.devices[device].agree(junk)
        assert_left(cohort, device)
