"""A device that cheats: it learns nothing, is refused or named, and at worst makes the round abort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mien.errors import (
    AuthError,
    CertificateError,
    CohortError,
    CorruptDataError,
    LateError,
    MienError,
    NonFiniteError,
    NotFoundError,
    ReplayError,
    ViolationError,
)
from mien.secagg import Addends, Opening, Suspect
from mien.secagg.device import PeerCount, Shared
from mien.secagg.keys import SEALED_BYTES, AgreementKey, MaskKey, VerifiedLeaf
from mien.secagg.wire import (
    Advertise,
    Consistency,
    Masked,
    Sealed,
    ShareKind,
    Shares,
    Unmask,
    statement_advertise,
    statement_shares,
)
from tests.mien.secagg.cohort import POLICY, Cohort, drbg, make_config, make_device, people, person, verify
from tests.mien.secagg.test_keys import SMALL_U
from tests.mien.secagg.test_rounds import assert_exact

N = 12  # t = 8 of 11 neighbours: three shares of each secret may be missing or wrong
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def cohort_of(n: int = N) -> Cohort:
    return Cohort.of(make_config(n), people(n))


# Keys


def test_strangers_do_not_get_in() -> None:
    """A certificate that the registrar's authority did not sign, whatever it says."""
    cohort = cohort_of()
    entry = Advertise.from_bytes(cohort.devices[person(0).id].advertise()).entry
    forged = Advertise(replace(entry, certificate=b"self-made")).to_bytes()
    with pytest.raises(CertificateError):
        cohort.server.accept_advertise(entry.id, forged)
    assert not cohort.server.reported(cohort.server.stage)


def test_nobody_speaks_for_another() -> None:
    cohort = cohort_of()
    message = cohort.devices[person(0).id].advertise()
    with pytest.raises(ViolationError, match="another device"):
        cohort.server.accept_advertise(person(1).id, message)
    entry = Advertise.from_bytes(message).entry
    renamed = Advertise(replace(entry, id=person(1).id)).to_bytes()
    with pytest.raises(CertificateError):
        cohort.server.accept_advertise(person(1).id, renamed)
    recertified = Advertise(replace(entry, id=person(1).id, certificate=person(1).certificate)).to_bytes()
    with pytest.raises(ViolationError):
        cohort.server.accept_advertise(person(1).id, recertified)


def test_one_device_advertises_once() -> None:
    cohort = cohort_of()
    device = person(0).id
    cohort.server.accept_advertise(device, cohort.devices[device].advertise())
    again = make_device(cohort.config, person(0), random_bytes=lambda size: b"\x07" * size)
    with pytest.raises((ReplayError, ViolationError)):
        cohort.server.accept_advertise(device, again.advertise())


def test_keys_are_not_shared_between_devices_or_roles() -> None:
    """A copy of another's key would pair both with the same masks."""
    cohort = cohort_of()
    first = Advertise.from_bytes(cohort.devices[person(0).id].advertise())
    cohort.server.accept_advertise(person(0).id, first.to_bytes())
    same_chance = make_device(cohort.config, person(1), random_bytes=_chance_of(person(0).id, cohort))
    with pytest.raises(ViolationError, match="in use"):
        cohort.server.accept_advertise(person(1).id, same_chance.advertise())
    entry = Advertise.from_bytes(make_device(cohort.config, person(2)).advertise()).entry
    one_key = replace(entry, share_key=entry.mask_key)
    with pytest.raises(ViolationError, match="in use"):
        cohort.server.accept_advertise(person(2).id, Advertise(one_key).to_bytes())
    kem_of_another = replace(entry, kem_key=first.entry.kem_key)
    with pytest.raises(ViolationError, match="in use"):
        cohort.server.accept_advertise(person(2).id, Advertise(kem_of_another).to_bytes())


def _chance_of(device: bytes, cohort: Cohort) -> Callable[[int], bytes]:
    return drbg(f"{device.hex()}/{cohort.config.round}/{cohort.config.attempt}")


@pytest.mark.parametrize("public", SMALL_U, ids=lambda u: u.hex()[:8])
def test_keys_of_small_order_are_refused_at_the_door(public: bytes) -> None:
    """Otherwise every neighbour would have to leave when it meets the zero secret."""
    cohort = cohort_of()
    entry = Advertise.from_bytes(cohort.devices[person(0).id].advertise()).entry
    beyond_q = b"\xff" * len(entry.kem_key)
    for weak in (replace(entry, mask_key=public), replace(entry, share_key=public), replace(entry, kem_key=beyond_q)):
        signed = replace(weak, signature=person(0).signer.sign(statement_advertise(cohort.config.sha256, weak)))
        with pytest.raises(ViolationError, match="no key pair has"):
            cohort.server.accept_advertise(person(0).id, Advertise(signed).to_bytes())


def test_a_second_form_of_a_signature_is_refused() -> None:
    """(r, n - s) verifies wherever (r, s) does, and would make two entries of one."""
    cohort = cohort_of()
    entry = Advertise.from_bytes(cohort.devices[person(0).id].advertise()).entry
    s = ORDER - int.from_bytes(entry.signature[32:], "big")
    other = replace(entry, signature=entry.signature[:32] + s.to_bytes(32, "big"))
    with pytest.raises(ViolationError):
        cohort.server.accept_advertise(entry.id, Advertise(other).to_bytes())


def test_oversized_messages_are_refused_unread() -> None:
    cohort = cohort_of()
    device = person(0).id
    message = cohort.devices[device].advertise()
    for bad in (message + b"\0" * 10_000_000, message[:-1], b"\x02\x01" + b"\xff" * 1500):
        with pytest.raises(CorruptDataError):
            cohort.server.accept_advertise(device, bad)


# Shares


def shares_changed(cohort: Cohort, device: bytes, change: Callable[[Shares], Shares], *, sign: bool = True) -> bytes:
    """Return message 3 of a device that changed it before signing (or after)."""
    honest = Shares.from_bytes(cohort.wire[3, device])
    changed = change(honest)
    if sign:
        statement = statement_shares(cohort.server.topology.binding, device, changed)
        identity = next(p for p in people(N) if p.id == device)
        changed = replace(changed, signature=identity.signer.sign(statement))
    return changed.to_bytes()


BAD_SHARES: dict[str, Callable[[Shares], Shares]] = {
    "one missing": lambda s: replace(s, sealed=s.sealed[:-1]),
    "one twice": lambda s: replace(s, sealed=(*s.sealed[:-1], s.sealed[0])),
    "index 0": lambda s: replace(s, sealed=(Sealed(0, s.sealed[0].ciphertext), *s.sealed[1:])),
    "indices exchanged": lambda s: replace(s, sealed=(s.sealed[1], s.sealed[0], *s.sealed[2:])),
    "one too many": lambda s: replace(s, sealed=(*s.sealed, Sealed(len(s.sealed) + 1, bytes(SEALED_BYTES)))),
    "none": lambda s: replace(s, sealed=()),
}


@pytest.mark.parametrize("name", BAD_SHARES)
def test_share_lists_that_do_not_fit_the_neighbours_are_refused(name: str) -> None:
    cohort = cohort_of()
    rosters = cohort.advertise()
    device = sorted(cohort.devices)[0]
    cohort.wire[3, device] = cohort.devices[device].share(rosters[device])
    with pytest.raises(ViolationError):
        cohort.server.accept_shares(device, shares_changed(cohort, device, BAD_SHARES[name]))
    cohort.server.accept_shares(device, cohort.wire[3, device])


def test_shares_changed_on_the_way_are_refused() -> None:
    cohort = cohort_of()
    rosters = cohort.advertise()
    device = sorted(cohort.devices)[0]
    cohort.wire[3, device] = cohort.devices[device].share(rosters[device])
    for change in (
        lambda s: replace(s, commitment_b=bytes(32)),
        lambda s: replace(s, sealed=(Sealed(1, bytes(SEALED_BYTES)), *s.sealed[1:])),
        lambda s: replace(s, signature=bytes(64)),
    ):
        with pytest.raises(ViolationError):
            cohort.server.accept_shares(device, shares_changed(cohort, device, change, sign=False))


def run_with_bad_sealing(spoiled: range, cheat_at: int = 5) -> tuple[Cohort, bytes, Callable[[], Opening]]:
    """Let one device seal nonsense for some of its neighbours."""
    cohort = cohort_of()
    cheat = sorted(cohort.devices)[cheat_at]

    def tamper(device: bytes, message: bytes) -> bytes:
        if device != cheat:
            return message
        cohort.wire[3, device] = message

        def spoil(shares: Shares) -> Shares:
            sealed = tuple(Sealed(s.x, bytes(SEALED_BYTES)) if s.x in spoiled else s for s in shares.sealed)
            return replace(shares, sealed=sealed)

        return shares_changed(cohort, device, spoil)

    cohort.tamper = {3: tamper}
    return cohort, cheat, cohort.run


def test_nonsense_sealed_for_three_neighbours_does_not_stop_the_round() -> None:
    """Its neighbours go on and say that they hold nothing; eight of eleven shares are enough."""
    cohort, cheat, run = run_with_bad_sealing(range(1, 4))
    opening = run()
    assert opening.sum.count == N
    assert_exact(cohort, opening)
    silent = [
        device
        for (kind, device), message in cohort.wire.items()
        if kind == 9 and any(k is ShareKind.NONE for k, _ in Unmask.from_bytes(message).shares)
    ]
    assert silent == sorted(cohort.devices)[:3]
    assert cheat not in silent


@pytest.mark.parametrize(("cheat_at", "lost"), [(0, False), (5, True)], ids=["from the lower id", "and then gone"])
def test_nonsense_in_the_place_of_a_mask_s_half_spoils_the_sum_and_shows_nothing(cheat_at: int, *, lost: bool) -> None:
    """A device can spoil a sum by any vector, and by this too: the checksum sees it, nobody else is thrown out."""
    cohort, cheat, run = run_with_bad_sealing(range(1, 4), cheat_at)
    cohort.lost = {5: {cheat}} if lost else {}
    with pytest.raises(CorruptDataError, match="checksum"):
        run()
    assert {device.stage for who, device in cohort.devices.items() if who != cheat} == {"Done"}


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: (*c, bytes(32))], ids=["one less", "one more"])
def test_covers_that_do_not_fit_the_neighbours_are_refused(
    change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]],
) -> None:
    cohort = cohort_of()
    delivered = cohort.share(cohort.advertise())
    device = sorted(cohort.devices)[0]
    masked = cohort.devices[device].mask(delivered[device], cohort.addends[device])
    message = Masked.from_bytes(masked.message)
    assert len(message.covers) == N - 1
    with pytest.raises(ViolationError, match="one cover for each neighbour"):
        cohort.server.accept_masked(device, replace(message, covers=change(message.covers)).to_bytes(), masked.payload)
    exchanged = replace(message, covers=(message.covers[1], message.covers[0], *message.covers[2:]))
    with pytest.raises(ViolationError, match="not signed"):
        cohort.server.accept_masked(device, exchanged.to_bytes(), masked.payload)


def test_nonsense_sealed_for_four_neighbours_aborts_with_the_cheat_named() -> None:
    _, cheat, run = run_with_bad_sealing(range(1, 5))
    with pytest.raises(CohortError, match=cheat.hex()[:8]):
        run()


# Who counts


@pytest.mark.parametrize(("num_old", "goes_on"), [(3, True), (2, False)])
def test_phones_that_were_admitted_for_this_sum_do_not_count(num_old: int, *, goes_on: bool) -> None:
    """The owner counts peers that were admitted by a day: three and this one are its floor, two leave it out."""
    config, (own, *others) = make_config(N), people(N)
    old = {identity.id for identity in others[:num_old]}

    def aged(leaf: bytes) -> VerifiedLeaf:
        found = verify(leaf)
        return replace(found, admitted_unix_s=1_000 if found.id in old else 1_001)

    policy = replace(POLICY, min_cohort=4, admitted_by_unix_s=1_000)
    careful = make_device(replace(config, cohort=replace(config.cohort, n_min=4)), own, policy=policy, verify=aged)
    cohort = Cohort.of(careful.config, [own, *others])
    cohort.devices[own.id] = careful
    roster = cohort.advertise()
    if goes_on:
        assert careful.share(roster[own.id])
        return
    with pytest.raises(CohortError, match=r"2 of the 11 phones .* were admitted long enough ago, 3 are needed"):
        careful.share(roster[own.id])
    assert careful.stage == "Left"


@pytest.mark.parametrize(("counts", "num_attested", "goes_on"), [(True, 1, True), (True, 0, False), (False, 9, False)])
def test_younger_phones_count_where_the_owner_takes_an_attested_key(
    num_attested: int, *, counts: bool, goes_on: bool
) -> None:
    """Two are old enough, and the floor needs three: which rule held is said."""
    config, (own, *others) = make_config(N), people(N)
    old = {identity.id for identity in others[:2]}
    attested = {identity.id for identity in others[1 : 2 + num_attested]}

    def aged(leaf: bytes) -> VerifiedLeaf:
        found = verify(leaf)
        unix_s = 1_000 if found.id in old else 1_001
        return replace(found, admitted_unix_s=unix_s, is_attested=found.id in attested)

    policy = replace(POLICY, min_cohort=4, admitted_by_unix_s=1_000, counts_attested=counts)
    careful = make_device(replace(config, cohort=replace(config.cohort, n_min=4)), own, policy=policy, verify=aged)
    cohort = Cohort.of(careful.config, [own, *others])
    cohort.devices[own.id] = careful
    roster = cohort.advertise()
    if goes_on:
        assert careful.share(roster[own.id])
        assert careful.peers == PeerCount(11, 2, 1)
        return
    with pytest.raises(CohortError, match=r"2 of the 11 phones .* long enough ago.*, 3 are needed"):
        careful.share(roster[own.id])


# Vectors


def test_vectors_of_another_length_or_hash_are_refused() -> None:
    cohort = cohort_of()
    delivered = cohort.share(cohort.advertise())
    device = sorted(cohort.devices)[0]
    masked = cohort.devices[device].mask(delivered[device], cohort.addends[device])
    for payload in (masked.payload + masked.payload, masked.payload[:-4], b"", bytes(len(masked.payload))):
        with pytest.raises(CorruptDataError):
            cohort.server.accept_masked(device, masked.message, payload)
    other = sorted(cohort.devices)[1]
    with pytest.raises(ViolationError):
        cohort.server.accept_masked(other, masked.message, masked.payload)
    with pytest.raises(NotFoundError):
        cohort.server.accept_masked(person(99).id, masked.message, masked.payload)
    assert not cohort.server._total.any(), "nothing was added"
    cohort.server.accept_masked(device, masked.message, masked.payload)
    covers = Masked.from_bytes(masked.message).covers
    second = Masked(masked.message[2:34], covers, bytes(64)).to_bytes()
    with pytest.raises(ReplayError):
        cohort.server.accept_masked(device, second, masked.payload)


def test_a_device_that_did_not_share_cannot_upload() -> None:
    cohort = cohort_of()
    late = sorted(cohort.devices)[0]
    cohort.lost = {3: {late}}
    delivered = cohort.share(cohort.advertise())
    assert late not in delivered
    with pytest.raises(ViolationError, match="without having shared"):
        cohort.server.accept_masked(
            late, Masked(bytes(32), (), bytes(64)).to_bytes(), bytes(cohort.server.payload_bytes)
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_never_reaches_the_sum(bad: float) -> None:
    cohort = cohort_of()
    delivered = cohort.share(cohort.advertise())
    devices = sorted(cohort.devices)
    update = np.zeros(cohort.config.size, np.float32)
    update[-1] = bad
    with pytest.raises(NonFiniteError):
        cohort.devices[devices[0]].mask(delivered[devices[0]], Addends(1, update, (0.0, 0.0)))
    bad_metric = Addends(1, np.zeros_like(update), (0.0, float(bad)))
    with pytest.raises(NonFiniteError):
        cohort.devices[devices[1]].mask(delivered[devices[1]], bad_metric)
    assert cohort.devices[devices[0]].stage == cohort.devices[devices[1]].stage == "Left"


def test_a_vector_under_wrong_masks_is_noticed_by_the_checksum() -> None:
    """Masks from a key that it did not announce: the sum is noise, and is not used."""
    cohort = cohort_of()
    delivered = cohort.share(cohort.advertise())
    cheat = sorted(cohort.devices)[0]
    state = cohort.devices[cheat]._state
    assert isinstance(state, Shared)
    cohort.devices[cheat]._state = replace(state, mask_key=MaskKey(b"another key, not announced before"[:32]))
    proofs = cohort.agree(cohort.mask(delivered))
    with pytest.raises(CorruptDataError, match="checksum"):
        cohort.unmask(proofs)


# Answers


def run_with_bad_answers(cheats: list[int], change: Callable[[Unmask], Unmask], n: int = N) -> tuple[Cohort, Opening]:
    """Let some devices change message 9."""
    cohort = cohort_of(n)
    order = sorted(cohort.devices)
    bad = {order[i] for i in cheats}

    def tamper(device: bytes, message: bytes) -> bytes:
        return change(Unmask.from_bytes(message)).to_bytes() if device in bad else message

    cohort.lost = {5: {order[n - 1]}}
    cohort.tamper = {9: tamper}
    return cohort, cohort.run()


def flipped(position: int) -> Callable[[Unmask], Unmask]:
    def change(answer: Unmask) -> Unmask:
        return Unmask(tuple((k, s[:position] + bytes([s[position] ^ 1]) + s[position + 1 :]) for k, s in answer.shares))

    return change


@pytest.mark.parametrize(
    "change", [flipped(0), flipped(31), lambda a: Unmask(tuple((k, bytes(32)) for k, _ in a.shares))]
)
def test_wrong_shares_are_worked_around_and_their_holder_named(change: Callable[[Unmask], Unmask]) -> None:
    cohort, opening = run_with_bad_answers([0], change)
    assert_exact(cohort, opening)
    order = sorted(cohort.devices)
    assert {suspect.holder for suspect in opening.suspects} == {order[0]}
    assert Suspect(order[0], order[1]) in opening.suspects


def test_shares_exchanged_between_owners_are_wrong_shares() -> None:
    cohort, opening = run_with_bad_answers([2], lambda a: Unmask((*a.shares[1:-1], a.shares[0], a.shares[-1])))
    assert_exact(cohort, opening)
    assert {suspect.holder for suspect in opening.suspects} == {sorted(cohort.devices)[2]}


def test_two_of_ten_holders_may_lie_together() -> None:
    """One device is lost, so ten hold shares of each survivor and eight are needed."""
    cohort, opening = run_with_bad_answers([0, 1], flipped(7))
    assert_exact(cohort, opening)
    assert {suspect.holder for suspect in opening.suspects} == set(sorted(cohort.devices)[:2])


def test_more_liars_than_can_be_worked_around_abort_and_release_nothing() -> None:
    with pytest.raises(CorruptDataError, match="too many shares"):
        run_with_bad_answers([0, 1, 2], flipped(7))


def test_a_large_cohort_finds_its_liars_by_decoding() -> None:
    """40 devices, t = 27: 38 holders answer, five of them wrongly; C(38, 27) subsets cannot be tried."""
    cohort, opening = run_with_bad_answers([0, 1, 2, 3, 4], flipped(3), n=40)
    assert_exact(cohort, opening)
    assert {suspect.holder for suspect in opening.suspects} == set(sorted(cohort.devices)[:5])


BAD_ANSWERS: dict[str, Callable[[Unmask], Unmask]] = {
    "the other kind": lambda a: Unmask(
        tuple((ShareKind.PAIR_KEY if k is ShareKind.SELF_MASK else ShareKind.SELF_MASK, s) for k, s in a.shares)
    ),
    "one less": lambda a: Unmask(a.shares[1:]),
    "one more": lambda a: Unmask((*a.shares, a.shares[0])),
    "none": lambda a: Unmask(()),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_answers_to_another_question_are_refused(name: str) -> None:
    with pytest.raises(ViolationError, match="other shares than were asked for"):
        run_with_bad_answers([0], BAD_ANSWERS[name])


def test_shares_of_another_length_are_no_message() -> None:
    with pytest.raises(MienError):
        run_with_bad_answers([0], lambda a: Unmask(tuple((k, s[:-1]) for k, s in a.shares)))


def test_a_dealer_whose_shares_lie_on_no_polynomial_is_named_beside_the_holder() -> None:
    """The server cannot tell which of the two lied, and says so: it names the pair."""
    cohort = cohort_of()
    cheat = sorted(cohort.devices)[5]
    delivered = cohort.share(cohort.advertise())
    survivors = cohort.mask(delivered)
    victim = cohort.devices[sorted(cohort.devices)[0]]
    victim._state.held[5][0] ^= 1  # type: ignore[union-attr]
    opening = cohort.unmask(cohort.agree(survivors))
    assert opening.suspects == (Suspect(sorted(cohort.devices)[0], cheat),)
    assert_exact(cohort, opening)


def test_signatures_about_other_survivors_are_refused() -> None:
    cohort = cohort_of()
    survivors = cohort.mask(cohort.share(cohort.advertise()))
    order = sorted(cohort.devices)
    honest = cohort.devices[order[0]].agree(survivors)
    with pytest.raises(ViolationError):
        cohort.server.accept_consistency(order[1], honest)
    with pytest.raises(ViolationError):
        cohort.server.accept_consistency(order[0], Consistency(bytes(64)).to_bytes())
    cohort.server.accept_consistency(order[0], honest)


def test_whoever_was_not_in_the_sum_cannot_answer() -> None:
    cohort = cohort_of()
    lost = sorted(cohort.devices)[0]
    cohort.lost = {5: {lost}}
    survivors = cohort.mask(cohort.share(cohort.advertise()))
    cohort.agree(survivors)
    with pytest.raises(LateError):
        cohort.server.accept_unmask(lost, Unmask(()).to_bytes())


def test_refusals_name_the_device_and_hold_no_secret() -> None:
    cohort = cohort_of()
    device = person(0).id
    entry = Advertise.from_bytes(cohort.devices[device].advertise()).entry
    spoiled = replace(entry, nonce=bytes(32))
    with pytest.raises((ViolationError, AuthError)) as refusal:
        cohort.server.accept_advertise(device, Advertise(spoiled).to_bytes())
    text = str(refusal.value)
    assert device.hex()[:8] in text
    assert entry.signature.hex()[:16] not in text
    assert AgreementKey(bytes(32)).public.hex()[:16] not in text
