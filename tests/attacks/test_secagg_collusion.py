"""The server together with some devices, and what the wire tells: sums hide the rest, masks have no short cut."""

from __future__ import annotations

import base64
import itertools
from dataclasses import replace

import numpy as np
import pytest

from mien.errors import MienError
from mien.secagg import Addends, Profile, shamir
from mien.secagg.canonical import pack_members
from mien.secagg.graph import complete_threshold
from mien.secagg.keys import NO_PART, AgreementKey, MaskKey, commitment_b, derive, pair_seed, self_seed
from mien.secagg.masks import WordStream, add_masks, key_stream
from mien.secagg.quantise import unpack
from mien.secagg.wire import ShareKind, Survivors, Unmask
from tests.mien.secagg import mlkem
from tests.mien.secagg.cohort import Cohort, make_config, people

N = 9  # t = 6 of 8 neighbours; up to 3 of them may help the server: 3 < 2 t - k = 4
HELPERS = 3


def test_no_story_gives_the_server_both_secrets_of_one_device() -> None:
    """Three neighbours show it all they hold, and the other five are told what it likes, each once.

    Devices that believe everything (no consistency round) are the worst case.
    """
    for told_alive in range(N - HELPERS):
        config = make_config(N, profile=Profile.HONEST_BUT_CURIOUS)
        # The cheaper profile's own threshold is 5; the malicious profile's 6 is what stops this.
        config = replace(config, cohort=replace(config.cohort, k=8, t=6))
        cohort = Cohort.of(config, people(N))
        cohort.mask(cohort.share(cohort.advertise()))
        victim, *rest = range(N)
        helpers, honest = rest[:HELPERS], rest[HELPERS:]
        ids = sorted(cohort.devices)
        held = {i: cohort.devices[ids[i]]._state.held[victim] for i in helpers}  # type: ignore[union-attr]
        of_b = {i: bytes(share[:32]) for i, share in held.items()}
        of_key = {i: bytes(share[32:]) for i, share in held.items()}
        for place, index in enumerate(honest):
            members = set(range(N)) if place < told_alive else set(range(N)) - {victim}
            answer = cohort.devices[ids[index]].agree(Survivors(pack_members(members, N)).to_bytes())
            kind, share = Unmask.from_bytes(answer).shares[0]
            assert kind is (ShareKind.SELF_MASK if place < told_alive else ShareKind.PAIR_KEY)
            (of_b if kind is ShareKind.SELF_MASK else of_key)[index] = share
        assert len(of_b) + len(of_key) == N - 1 + HELPERS
        assert not (opens_b(cohort, victim, of_b) and opens_key(cohort, victim, of_key))


def opens_b(cohort: Cohort, owner: int, shares: dict[int, bytes]) -> bool:
    """Return whether any 6 of the shares give b."""
    topology = cohort.server.topology
    by_x = {topology.graph.share_index(owner, holder): share for holder, share in shares.items()}
    owner_id = topology.ids[owner]
    return any(
        commitment_b(shamir.combine({x: by_x[x] for x in chosen}, 6), topology.binding, owner_id)
        == cohort.server._commitments[owner]
        for chosen in itertools.combinations(by_x, 6)
    )


def opens_key(cohort: Cohort, owner: int, shares: dict[int, bytes]) -> bool:
    """Return whether any 6 of the shares give the mask key."""
    topology = cohort.server.topology
    by_x = {topology.graph.share_index(owner, holder): share for holder, share in shares.items()}
    public = cohort.server._peers[topology.ids[owner]].entry.mask_key
    return any(
        MaskKey(shamir.combine({x: by_x[x] for x in chosen}, 6)).public == public
        for chosen in itertools.combinations(by_x, 6)
    )


@pytest.mark.parametrize("profile", Profile)
def test_the_threshold_leaves_room_for_helpers_at_every_size(profile: Profile) -> None:
    """h1 + c >= t and h2 + c >= t with h1 + h2 <= k - c has no solution up to a tenth of helpers (malicious)."""
    for n in range(3, 98):
        k, t = n - 1, complete_threshold(profile, n)
        c = n // 10 if profile is Profile.MALICIOUS_SERVER else 0
        assert not any(h + c >= t and k - c - h + c >= t for h in range(k - c + 1)), (n, k, t)


def test_two_vectors_of_one_update_have_nothing_in_common() -> None:
    """The masked vector of an update of zeros is as random as any: bits are fair coins, words do not repeat."""
    config = replace(make_config(6), size=20_000, num_metrics=0)
    config = replace(config, numbers=replace(config.numbers, l2_clip=1000.0))
    vectors = []
    for attempt in (1, 2):
        cohort = Cohort.of(replace(config, attempt=attempt), people(6))
        cohort.addends = {d: Addends(1, np.zeros(config.size, np.float32)) for d in cohort.devices}
        cohort.mask(cohort.share(cohort.advertise()))
        vectors += [unpack(payload, 32) for payload in cohort.payloads.values()]
    bits = np.unpackbits(np.concatenate(vectors).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 6 * 0.5 / np.sqrt(len(bits))
    for a, b in itertools.combinations(vectors, 2):
        assert np.count_nonzero(a == b) < 4


def test_without_its_own_secret_all_others_together_learn_nothing_of_a_vector() -> None:
    """They remove every pair mask of the victim; its self mask still hides the vector, and only b removes that."""
    cohort = Cohort.of(make_config(5), people(5))
    delivered = cohort.share(cohort.advertise())
    victim, *others = sorted(cohort.devices)
    keys = {d: cohort.devices[d]._state.mask_key for d in others}  # type: ignore[union-attr]
    b = bytes(cohort.devices[victim]._state.b)  # type: ignore[union-attr]
    own_key = cohort.devices[victim]._state.mask_key  # type: ignore[union-attr]
    cohort.mask(delivered)
    binding, public = cohort.server.topology.binding, cohort.server._peers[victim].entry.mask_key
    words = unpack(cohort.payloads[victim], 32)
    # The victim has the lowest id: it had added them all.
    parts = {d: own_key.part(binding, victim, d) for d in others}
    add_masks(words, [], [pair_seed(keys[d], public, parts[d], binding, d, victim) for d in others])
    assert np.count_nonzero(words >> 24) > len(words) // 2, "no lane is a small number"
    assert words[0] != 1
    add_masks(words, [], [self_seed(b, binding, victim)])
    assert words[:2].tolist() == [1, cohort.addends[victim].weight]


def test_whoever_breaks_x25519_later_finds_no_mask_in_what_was_recorded() -> None:
    """All X25519 keys of a cohort, every message and b: the pair masks stand, for their other half was sealed."""
    cohort = Cohort.of(make_config(5), people(5))
    delivered = cohort.share(cohort.advertise())
    victim, *others = sorted(cohort.devices)
    state = cohort.devices[victim]._state
    b, own_key = bytes(state.b), state.mask_key  # type: ignore[union-attr]
    cohort.mask(delivered)
    binding = cohort.server.topology.binding
    public = {d: cohort.server._peers[d].entry.mask_key for d in others}
    broken = AgreementKey(own_key._key.private_bytes_raw())
    assert broken.public == cohort.server._peers[victim].entry.mask_key

    def left(parts: dict[bytes, bytes]) -> list[int]:
        words = unpack(cohort.payloads[victim], 32)
        pairs = [pair_seed(broken, public[d], parts[d], binding, victim, d) for d in others]
        add_masks(words, [], [*pairs, self_seed(b, binding, victim)])
        return [int(word) for word in words[:2]]

    truth = [1, cohort.addends[victim].weight]
    assert left({d: own_key.part(binding, victim, d) for d in others}) == truth
    recovered = own_key._key.private_bytes_raw()
    assert left(dict.fromkeys(others, NO_PART)) != truth
    assert left({d: derive(recovered, binding, "part", victim, d) for d in others}) != truth


# What the wire tells


def test_weights_metrics_and_updates_are_nowhere_but_in_the_masked_vector() -> None:
    """Two runs that differ in one device's images, losses and update differ in its vector and its signature only."""
    config = make_config(6)
    first, second = (Cohort.of(config, people(6), encapsulate=mlkem.encapsulate) for _ in range(2))
    device = sorted(first.devices)[2]
    changed = first.addends[device]
    second.addends[device] = Addends(changed.weight % 64 + 1, -changed.update, (0.0, 31.0))
    first.run()
    second.run()
    different = {key for key in first.wire if first.wire[key] != second.wire[key]}
    assert different == {(5, device)}
    assert {d for d in first.payloads if first.payloads[d] != second.payloads[d]} == {device}
    assert {len(p) for p in first.payloads.values()} == {len(p) for p in second.payloads.values()}


def test_no_secret_is_on_the_wire_in_clear() -> None:
    config = make_config(6)
    cohort = Cohort.of(config, people(6))
    delivered = cohort.share(cohort.advertise())
    secrets = []
    for target in cohort.devices.values():
        state = target._state
        secrets += [bytes(state.b), state.mask_key.secret_bytes(), state.share_key._key.private_bytes_raw()]  # type: ignore[union-attr]
    cohort.unmask(cohort.agree(cohort.mask(delivered)))
    wire = b"".join([*cohort.wire.values(), *cohort.payloads.values()])
    assert len(secrets) == 18
    assert not [secret for secret in secrets if secret in wire]
    update = next(iter(cohort.addends.values())).update.tobytes()
    assert update not in wire
    assert update[:8] not in wire


# The masks' seeds


def test_every_bit_of_a_seed_changes_half_of_the_mask() -> None:
    base = np.unpackbits(WordStream(bytes(32)).take(4096).view(np.uint8))
    for bit in range(8 * 28):
        seed = bytearray(32)
        seed[bit // 8] ^= 1 << bit % 8
        changed = np.unpackbits(WordStream(bytes(seed)).take(4096).view(np.uint8))
        assert abs((base != changed).mean() - 0.5) < 0.01, bit


@pytest.mark.parametrize("kind", ["counter", "base64 text"])
def test_seeds_are_not_folded_to_32_bits(kind: str) -> None:
    """2^20 seeds give 2^20 masks. Folded to 32 bits they would collide some 128 times, to 28 bits some 2048 times.

    (The peer whose seeds were folded by XOR took base64 text, of which only 28 bits remained.)
    """
    count = 1 << 20
    first_words = np.empty(count, "<u8")
    rng = np.random.default_rng(0)
    if kind == "counter":
        raw = np.zeros((count, 32), np.uint8)
        raw[:, :4] = np.arange(count, dtype="<u4").view(np.uint8).reshape(-1, 4)
        seeds = [row.tobytes() for row in raw]
    else:
        text = base64.urlsafe_b64encode(rng.bytes(24 * count))
        seeds = [text[32 * i : 32 * (i + 1)] for i in range(count)]
    for i, seed in enumerate(seeds):
        first_words[i] = int.from_bytes(key_stream(seed).update(bytes(8)), "little")
    assert len(np.unique(first_words)) == count


def test_a_folded_seed_would_be_found() -> None:
    """The same count over seeds folded to 32 bits does collide: the test above can fail."""
    rng = np.random.default_rng(0)
    words = np.frombuffer(rng.bytes(32 << 20), "<u4").reshape(-1, 8)
    folded = np.bitwise_xor.reduce(words, axis=1)
    assert len(np.unique(folded)) < len(folded) - 50


def test_unmasking_with_a_wrong_seed_is_an_error_not_a_result() -> None:
    cohort = Cohort.of(make_config(6), people(6))
    cohort.unmask(cohort.agree(cohort.mask(cohort.share(cohort.advertise()))))
    cohort.server._total[3] ^= np.uint32(1)
    with pytest.raises(MienError, match="checksum"):
        cohort.server.open()
