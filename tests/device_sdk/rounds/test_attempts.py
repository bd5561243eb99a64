"""The log of private sums: on disk before it returns, in order, once, and out of reach of a tamperer."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk.people.gallery import Gallery
from device_sdk.rounds.attempts import ANY_PICTURES, DAY_S, Attempts, OwnSum, SumLimits, promised, sums_today, used_up
from device_sdk.storage.keystore import FileKeyStore
from mien.dp.accountant import Release, epsilon_rdp
from mien.errors import BudgetExceededError, CorruptDataError, KeyStoreError, ReplayError
from mien.protocol.ids import RoundNumber
from mien.secagg import AttemptId, Mechanism, NoiseTerms, RoundConfig
from mien.secagg.noise import release
from mien.shell.clock import Clock
from mien.specs import DpSpec, PrivacySpec, TaskSpec
from tests.mien.secagg.cohort import NUMBERS, make_config

ROUND = make_config(7)
OTHER_TASK = replace(ROUND, task_id=b"another".ljust(16, b"."))
NOISE = NoiseTerms(Mechanism.SKELLAM, 4.0, 8.0, 1e-6)


def at(round_number: int, attempt: int = 1, of: RoundConfig = ROUND) -> RoundConfig:
    return replace(of, round=round_number, attempt=attempt)


def noisy(round_number: int) -> RoundConfig:
    return replace(at(round_number), numbers=replace(NUMBERS, max_weight=1, frac_bits=8), noise=NOISE)


def reopened(tmp_path: Path, key_store: FileKeyStore, population: str = "default") -> Attempts:
    return Attempts.open(tmp_path / "home" / "attempts.db", key_store, population)


def test_an_attempt_is_begun_once_and_in_order(attempts: Attempts) -> None:
    attempts.begin(at(7, 2))
    for stale in (at(7, 2), at(7, 1), at(6, 9)):
        with pytest.raises(ReplayError, match="is not new here"):
            attempts.begin(stale)
    attempts.begin(at(7, 3))
    attempts.begin(at(8, 1))
    attempts.begin(at(1, 1, OTHER_TASK))


def test_steps_happen_once_and_in_order(attempts: Attempts) -> None:
    attempt = ROUND.attempt_id
    with pytest.raises(ReplayError):
        attempts.record_masked(attempt)
    attempts.begin(ROUND)
    with pytest.raises(ReplayError):
        attempts.record_unmasked(attempt)
    attempts.record_masked(attempt)
    with pytest.raises(ReplayError):
        attempts.record_masked(attempt)
    attempts.record_unmasked(attempt)
    with pytest.raises(ReplayError):
        attempts.record_unmasked(attempt)


def test_steps_of_an_attempt_that_a_later_one_replaced_are_refused(attempts: Attempts) -> None:
    attempts.begin(at(7, 1))
    attempts.begin(at(7, 2))
    with pytest.raises(ReplayError):
        attempts.record_masked(AttemptId(ROUND.task_id, 7, 1))
    assert attempts.participations() == ()


def test_everything_is_there_after_a_restart(tmp_path: Path, key_store: FileKeyStore, attempts: Attempts) -> None:
    attempts.begin(ROUND)
    attempts.record_masked(ROUND.attempt_id)
    attempts.close()
    again = reopened(tmp_path, key_store)
    assert again.has_begun(ROUND.attempt_id)
    assert again.has_begun(at(6).attempt_id)
    assert not again.has_begun(at(7, 2).attempt_id)
    assert not again.has_begun(OTHER_TASK.attempt_id)
    assert again.participations() == (ROUND,)
    with pytest.raises(ReplayError):
        again.begin(ROUND)
    with pytest.raises(ReplayError):
        again.record_masked(ROUND.attempt_id)
    again.record_unmasked(ROUND.attempt_id)
    again.close()


def test_what_was_recorded_survives_the_process(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from device_sdk.rounds.attempts import Attempts\n"
        "from device_sdk.storage.keystore import FileKeyStore\n"
        "from tests.mien.secagg.cohort import make_config\n"
        "home = pathlib.Path(sys.argv[1])\n"
        "log = Attempts.open(home / 'attempts.db', FileKeyStore(home / 'keys'), 'default')\n"
        "log.begin(make_config(7))\n"
        "log.record_masked(make_config(7).attempt_id)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    home = tmp_path / "home"
    done = subprocess.run([sys.executable, "-c", code, str(home)], check=False)
    assert done.returncode == -signal.SIGKILL
    log = reopened(tmp_path, FileKeyStore(home / "keys"))
    assert log.participations() == (ROUND,)
    log.close()


def test_participations_are_counted_for_each_population(tmp_path: Path, key_store: FileKeyStore) -> None:
    for population in ("a", "b"):
        log = reopened(tmp_path, key_store, population)
        log.begin(at(7, 1 if population == "a" else 2))
        log.record_masked(at(7, 1 if population == "a" else 2).attempt_id)
        log.close()
    log = reopened(tmp_path, key_store, "a")
    assert [terms.attempt for terms in log.participations()] == [1]
    log.close()


def test_wiping_the_gallery_does_not_forget_what_was_sent(tmp_path: Path, key_store: FileKeyStore) -> None:
    Gallery.open(tmp_path / "home" / "device.db", key_store).close()
    log = reopened(tmp_path, key_store)
    log.begin(ROUND)
    log.record_masked(ROUND.attempt_id)
    log.close()
    Gallery.wipe(tmp_path / "home" / "device.db", key_store)
    log = reopened(tmp_path, key_store)
    assert len(log.participations()) == 1
    log.close()


def test_a_record_that_was_removed_is_noticed(tmp_path: Path, key_store: FileKeyStore, attempts: Attempts) -> None:
    attempts.begin(ROUND)
    attempts.record_masked(ROUND.attempt_id)
    attempts.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "home" / "attempts.db")) as connection, connection:
        connection.execute("DELETE FROM participations")
    connection.close()
    with pytest.raises(CorruptDataError, match="log of private sums was changed by something other"):
        reopened(tmp_path, key_store)


def test_the_log_of_another_device_does_not_open(tmp_path: Path, attempts: Attempts) -> None:
    attempts.close()
    strange = FileKeyStore(tmp_path / "strange")
    strange.create("attempts")
    with pytest.raises(KeyStoreError, match="does not open the log of private sums"):
        reopened(tmp_path, strange)


# --- budgets ---


def task_with(dp: DpSpec, method: str = "fedavg") -> TaskSpec:
    return TaskSpec("t", method=method, rounds=9, trainable=("a",), privacy=PrivacySpec(max_weight=1, dp=dp))


def test_where_sums_add_up_a_phone_is_in_one_of_them(attempts: Attempts) -> None:
    """Also where its sum may not have been opened: others' shares may have done that without it."""
    log = attempts.under(promised(task_with(DpSpec(), "statistics"), None, SumLimits(per_model=None)))
    first, second, third = (replace(ROUND, round=RoundNumber(ROUND.round + k)) for k in range(3))
    log.begin(first)
    log.begin(second)  # it sent nothing in the round before
    log.record_masked(second.attempt_id)
    with pytest.raises(BudgetExceededError, match=f"is counted already, in round {second.round}"):
        log.begin(third)
    log.begin(OTHER_TASK)


def test_a_refused_attempt_is_as_if_it_had_not_been_asked_for(attempts: Attempts) -> None:
    def nothing(_terms: object, _earlier: object) -> None:
        raise BudgetExceededError("spent")

    with pytest.raises(BudgetExceededError):
        attempts.under(nothing).begin(ROUND)
    assert not attempts.has_begun(ROUND.attempt_id)
    attempts.begin(ROUND)


def test_a_tasks_promise_counts_this_tasks_sums_only(attempts: Attempts) -> None:
    dp = DpSpec("skellam", 4.0, 8.0, 1e-6, max_participations=2, min_separation=3)
    log = attempts.under(promised(task_with(dp), None))
    other = replace(noisy(1), task_id=OTHER_TASK.task_id)
    for terms in (other, noisy(1)):
        log.begin(terms)
        log.record_masked(terms.attempt_id)
    with pytest.raises(BudgetExceededError, match="in 1 sums of this task already"):
        log.begin(noisy(3))  # rounds 1 and 3 are too close
    log.begin(noisy(4))
    log.record_masked(noisy(4).attempt_id)
    with pytest.raises(BudgetExceededError, match="at most 2"):
        log.begin(noisy(9))


def test_an_owners_limit_counts_every_sum_and_ends_with_one_without_noise(attempts: Attempts) -> None:
    log = attempts.under(promised(task_with(DpSpec()), max_epsilon=2.0))

    def take_part(rounds: int) -> None:
        for number in range(1, rounds + 1):
            log.begin(noisy(number))
            log.record_masked(noisy(number).attempt_id)

    with pytest.raises(BudgetExceededError, match="the owner's limit is 2"):
        take_part(100)
    assert 1 < len(log.participations()) < 100
    with pytest.raises(BudgetExceededError, match="any epsilon"):
        attempts.under(promised(task_with(DpSpec()), max_epsilon=1e6)).begin(OTHER_TASK)


def test_an_owners_limit_counts_the_sums_of_earlier_populations_too(
    tmp_path: Path, key_store: FileKeyStore, attempts: Attempts
) -> None:
    """What left this phone stays told, also when it has joined another population since; that one's promises do not."""
    take_part(attempts, *(noisy(number) for number in range(1, 4)))
    spent = epsilon_rdp([(release(noisy(1), DpSpec("skellam", 4.0, 8.0, 1e-6, max_participations=1)), 3)], 1e-6)
    attempts.close()
    moved = reopened(tmp_path, key_store, "elsewhere")
    coming = called("theirs", 1, replace(NOISE, target_epsilon=spent))
    with pytest.raises(BudgetExceededError, match="the owner's limit is"):
        moved.under(promised(task_with(DpSpec()), max_epsilon=spent)).begin(coming)
    take_part(moved.under(promised(task_with(DpSpec()), None)), coming)
    assert moved.participations() == (coming,)
    moved.close()


def called(name: str, round_number: int, noise: NoiseTerms = NOISE) -> RoundConfig:
    return replace(noisy(round_number), task_id=name.encode().ljust(16, b"."), noise=noise)


def test_a_promise_holds_over_all_tasks_of_the_population_whatever_they_are_called(attempts: Attempts) -> None:
    """A coordinator that begins the same task under another name gets no more sums than the promise has room for."""
    dp = DpSpec("skellam", 4.0, 8.0, 1e-6, max_participations=10, min_separation=1)
    log = attempts.under(promised(task_with(dp), None))
    with pytest.raises(BudgetExceededError, match="over all their sums"):
        take_part(log, *(called(f"task {task}", number) for task in range(30) for number in range(1, 11)))
    releases = [(Release("skellam", *told), 1) for told in costs(log)]
    assert epsilon_rdp(releases, 1e-6) <= 8.0 * (1 + 1e-6)
    assert epsilon_rdp([(releases[0][0], len(releases) + 1)], 1e-6) > 8.0


def test_the_smallest_promise_holds_and_none_survives_a_sum_without_noise(attempts: Attempts) -> None:
    dp = DpSpec("skellam", 4.0, 8.0, 1e-6, max_participations=1000, min_separation=1)
    log = attempts.under(promised(task_with(dp), None))
    small = called("small", 1, replace(NOISE, target_epsilon=2.0))
    take_part(log, small, called("large", 1))
    with pytest.raises(BudgetExceededError, match="promised epsilon 2 at"):
        take_part(log, *(called("large", number) for number in range(2, 100)))
    with pytest.raises(BudgetExceededError, match="promised epsilon 2 at"):
        log.begin(OTHER_TASK)  # without noise


def test_sums_without_noise_before_any_promise_keep_nobody_out(attempts: Attempts) -> None:
    dp = DpSpec("skellam", 4.0, 8.0, 1e-6, max_participations=1, min_separation=1)
    log = attempts.under(promised(task_with(dp), None))
    take_part(log, OTHER_TASK, noisy(1))


def take_part(log: Attempts, *sums: RoundConfig) -> None:
    """Begin these sums, and send a masked vector into each."""
    for terms in sums:
        log.begin(terms)
        log.record_masked(terms.attempt_id)


def costs(log: Attempts) -> list[tuple[float, float, int]]:
    """Return noise multiplier, sensitivity and size of each sum in the log, as the rounds' terms give them."""
    found = [release(sum_, DpSpec("skellam", 4.0, 8.0, 1e-6, max_participations=1)) for sum_ in log.participations()]
    return [(each.noise_multiplier, each.l2_steps, each.size) for each in found if each is not None]


# --- without noise: two sums that differ by one phone tell what that phone sent ---

CLEAR = promised(task_with(DpSpec()), None)
MINE, OTHERS = b"m" * 32, b"o" * 32
LATER_MODEL = replace(ROUND, model_sha256=b"2" * 32)


class SetClock(Clock):
    """A clock that shows what it was set to."""

    unix_s = 1_800_000_000.0

    def now(self) -> float:
        return self.unix_s


def release_shares(log: Attempts, *sums: RoundConfig) -> None:
    """Take part in these sums up to the shares that open them."""
    for terms in sums:
        take_part(log, terms)
        log.record_unmasked(terms.attempt_id)


def test_the_same_pictures_go_into_one_opened_sum_a_model_whatever_the_task_is_called(attempts: Attempts) -> None:
    log = attempts.under(CLEAR, MINE)
    release_shares(log, at(1))
    for again in (at(1, 2), at(2), at(1, 1, OTHER_TASK), replace(at(9), layout_sha256=b"l" * 32)):
        with pytest.raises(BudgetExceededError, match=r"in 1 sum over model .*max_sums_per_model"):
            log.begin(again)
    release_shares(log, at(2, 1, LATER_MODEL))  # the next round's model is another one
    attempts.under(CLEAR, OTHERS).begin(at(3))  # and other pictures cancel nothing
    attempts.under(promised(task_with(DpSpec()), None, SumLimits(per_model=2)), MINE).begin(at(4))


def test_an_attempt_that_nobody_was_helped_to_open_may_be_tried_again_and_keeps_others_out(attempts: Attempts) -> None:
    log = attempts.under(CLEAR, MINE)
    take_part(log, at(1, 1), at(1, 2), at(1, 3))
    for elsewhere in (at(2), at(1, 4, OTHER_TASK)):
        with pytest.raises(BudgetExceededError, match="in 3 sums over model"):
            log.begin(elsewhere)
    release_shares(log, at(1, 4))
    with pytest.raises(BudgetExceededError):
        log.begin(at(1, 5))


def test_of_attempts_that_began_together_one_goes_on(attempts: Attempts) -> None:
    log = attempts.under(CLEAR, MINE)
    other = at(1, 1, OTHER_TASK)
    log.begin(at(1))
    log.begin(other)
    log.record_masked(other.attempt_id)
    with pytest.raises(BudgetExceededError):
        log.record_masked(at(1).attempt_id)
    assert [sum_.terms for sum_ in log.sums()] == [other]


def test_noise_that_only_the_coordinator_promises_is_none_here(attempts: Attempts) -> None:
    """A coordinator that sees a sum without noise can take two of them apart."""
    dp = DpSpec("central_gaussian", 4.0, 8.0, 1e-6, max_participations=9, min_separation=1)
    central = replace(NOISE, mechanism=Mechanism.CENTRAL_GAUSSIAN)
    log = attempts.under(promised(task_with(dp), None), MINE)
    take_part(log, called("a", 1, central))
    with pytest.raises(BudgetExceededError, match="max_sums_per_model"):
        log.begin(called("b", 1, central))


@pytest.mark.parametrize(("epsilon", "num_sums"), [(8.0, 3), (1000.0, 1)])
def test_phones_own_noise_counts_as_far_as_it_promises_something(
    attempts: Attempts, epsilon: float, num_sums: int
) -> None:
    dp = DpSpec("skellam", 4.0, epsilon, 1e-6, max_participations=99, min_separation=1)
    log = attempts.under(promised(task_with(dp), None), MINE)
    rounds = [called(str(number), 1, replace(NOISE, target_epsilon=epsilon)) for number in range(3)]
    take_part(log, *rounds[:num_sums])
    for terms in rounds[num_sums:]:
        with pytest.raises(BudgetExceededError, match="max_sums_per_model"):
            log.begin(terms)


def test_models_that_differ_in_a_bit_are_as_many_as_a_day_has_sums(tmp_path: Path, key_store: FileKeyStore) -> None:
    clock = SetClock()
    attempts = Attempts.open(tmp_path / "home" / "attempts.db", key_store, "default", clock)
    log = attempts.under(promised(task_with(DpSpec()), None, SumLimits(per_day=3)), MINE)
    models = [replace(at(1, 1, ROUND), task_id=bytes([n] * 16), model_sha256=bytes([n] * 32)) for n in range(9)]
    release_shares(log, models[0])
    take_part(log, models[1], replace(models[1], attempt=2), replace(models[1], attempt=3))  # one round, never opened
    release_shares(log, models[2])
    assert sums_today(log.sums(), int(clock.now())) == 3
    with pytest.raises(BudgetExceededError, match=r"into 3 sums in the last 24 hours.*max_sums_per_day"):
        log.begin(models[3])
    log.begin(replace(models[1], attempt=4))
    clock.unix_s += DAY_S
    release_shares(log, *models[3:6])
    clock.unix_s -= 2 * DAY_S  # the owner set it right
    release_shares(log, models[6])
    assert sums_today(log.sums(), int(clock.now())) == 1
    attempts.close()


def test_the_newest_sums_model_is_used_up_once_it_has_the_pictures_as_often_as_may_be(
    tmp_path: Path, key_store: FileKeyStore
) -> None:
    clock = SetClock()
    attempts = Attempts.open(tmp_path / "home" / "attempts.db", key_store, "default", clock)
    log = attempts.under(promised(task_with(DpSpec()), None, SumLimits(per_model=2)), MINE)
    rounds = [replace(at(1, 1, ROUND), task_id=bytes([n] * 16), model_sha256=bytes([n // 2] * 32)) for n in range(3)]
    assert used_up(log.sums(), 1) is None
    told = []
    for terms in rounds:
        clock.unix_s += 1
        release_shares(log, terms)
        told.append((used_up(log.sums(), 1), used_up(log.sums(), 2)))
    assert told == [("00" * 32, None), ("00" * 32, "00" * 32), ("01" * 32, None)]
    attempts.close()


def test_sums_of_earlier_versions_count_as_opened_with_any_pictures(attempts: Attempts) -> None:
    old = OwnSum.from_bytes(ROUND.to_bytes())
    assert old == OwnSum(ROUND, ANY_PICTURES, 0, is_released=True)
    with pytest.raises(BudgetExceededError):
        SumLimits().check(OwnSum(at(8), MINE, 99), [old])
    assert OwnSum.from_bytes(OwnSum(ROUND, MINE, 99, is_released=False).to_bytes()).pictures == MINE


def test_a_phone_that_is_killed_as_its_shares_go_out_has_noted_that(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from device_sdk.rounds.attempts import Attempts, unlimited\n"
        "from device_sdk.storage.keystore import FileKeyStore\n"
        "from tests.mien.secagg.cohort import make_config\n"
        "home = pathlib.Path(sys.argv[1])\n"
        "log = Attempts.open(home / 'attempts.db', FileKeyStore(home / 'keys'), 'default')\n"
        "log = log.under(unlimited, b'm' * 32)\n"
        "log.begin(make_config(7))\n"
        "log.record_masked(make_config(7).attempt_id)\n"
        "log.record_unmasked(make_config(7).attempt_id)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    home = tmp_path / "home"
    done = subprocess.run([sys.executable, "-c", code, str(home)], check=False)
    assert done.returncode == -signal.SIGKILL
    log = reopened(tmp_path, FileKeyStore(home / "keys"))
    assert [(sum_.pictures, sum_.is_released) for sum_ in log.sums()] == [(MINE, True)]
    with pytest.raises(BudgetExceededError):
        log.under(CLEAR, MINE).begin(replace(ROUND, attempt=ROUND.attempt + 1))
    log.close()
