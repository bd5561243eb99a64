"""Which model is whose: roll-outs by share, roll-backs, and where each model stands."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mien.protocol.rounds import BlobId
from mien.rounds.records import CandidateRecord, CandidateState, ModelRecord, ReleaseRecord
from mien.rounds.releases import ModelState, Standing, before, history_of, in_force, place, rolled_back, standings

A, B, C = (letter * 64 for letter in "abc")


def released(model_id: str, share: float = 1.0, *, back: bool = False, population: str | None = None) -> ReleaseRecord:
    return ReleaseRecord(model_id, population, 0, "alice", share, is_rollback=back)


def devices(count: int) -> list[str]:
    return [hashlib.sha256(str(i).encode()).hexdigest()[:32] for i in range(count)]


def who_has(model_id: str, history: list[ReleaseRecord], count: int = 2000) -> set[str]:
    found = ((device, in_force(history, device)) for device in devices(count))
    return {device for device, release in found if release is not None and release.model_id == model_id}


class TestShares:
    def test_a_share_of_the_devices_has_the_new_model_and_keeps_it_as_the_share_grows(self) -> None:
        history = [released(A), released(B, 0.1)]
        tenth = who_has(B, history)
        assert 150 < len(tenth) < 250  # binomial, 2000 at 0.1: 200 +- 3.7 deviations
        half = who_has(B, [*history, released(B, 0.5)])
        assert tenth < half
        assert len(who_has(B, [*history, released(B, 0.5), released(B)])) == 2000

    def test_another_model_begins_with_other_devices(self) -> None:
        first, second = (who_has(model, [released(A), released(model, 0.1)]) for model in (B, C))
        assert len(first & second) < 50  # independent: 20 expected

    def test_without_a_device_it_is_what_everybody_else_has(self) -> None:
        release = in_force([released(A), released(B, 0.9)])
        assert release is not None
        assert release.model_id == A

    def test_a_newer_roll_out_ends_one_that_was_under_way(self) -> None:
        history = [released(A), released(B, 0.9), released(C, 0.1)]
        assert not who_has(B, history)
        assert len(who_has(A, history)) + len(who_has(C, history)) == 2000

    def test_place_is_fixed(self) -> None:
        """Phones must not change sides after an upgrade of the coordinator."""
        assert place("0" * 32, A) == pytest.approx(0.3540273, abs=1e-7)

    def test_nothing_released(self) -> None:
        assert in_force([]) is None
        assert in_force([released(A, 0.5)]) is None


class TestBack:
    @pytest.mark.parametrize(
        ("history", "earlier"),
        [
            ([], None),
            ([released(A)], None),
            ([released(A), released(B)], A),
            ([released(A), released(B, 0.1)], A),
            ([released(A), released(B), released(C)], B),
            ([released(A), released(B), released(C), released(B, back=True)], A),
            ([released(A), released(B), released(A, back=True)], None),
            ([released(A), released(B), released(A, back=True), released(C)], A),
            ([released(A), released(B), released(A), released(C), released(A, back=True)], B),
            ([released(A), released(B, 0.1), released(B)], A),
        ],
    )
    def test_each_roll_back_goes_one_further(self, history: list[ReleaseRecord], earlier: str | None) -> None:
        assert before(history) == earlier

    @given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.sampled_from([0.1, 1.0])), max_size=12))
    def test_rolling_back_ends(self, steps: list[tuple[str, float]]) -> None:
        history = [released(A), *(released(model, share) for model, share in steps)]
        for _ in range(len(history) + 1):
            earlier = before(history)
            if earlier is None:
                break
            history.append(released(earlier, back=True))
        assert before(history) is None
        assert history[-1].model_id == A


class TestBackForAll:
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["back", 0.1, 1.0]), st.sampled_from([None, "alpha", "beta"]), st.sampled_from("abcd")
            ),
            max_size=16,
        )
    )
    def test_nobody_gets_what_was_not_released_to_them_and_it_ends(
        self, steps: list[tuple[str | float, str | None, str]]
    ) -> None:
        releases = [ReleaseRecord(A, None, 0, "x")]
        own: dict[str | None, set[str]] = {population: {A} for population in (None, "alpha", "beta", "gamma")}

        def go_back(population: str | None) -> bool:
            newest = history_of(releases, population)[-1]
            had = {each: history_of(releases, each)[-1] for each in own}
            made = rolled_back(releases, population)
            releases.extend(release for _, release in made)
            for each, models in own.items():
                now = history_of(releases, each)
                assert {release.model_id for release in (now[-1], in_force(now)) if release} <= models
                if had[each].population != newest.population:  # theirs is not what is taken back
                    assert (now[-1].model_id, now[-1].share) == (had[each].model_id, had[each].share)
            return bool(made)

        for what, population, name in steps:
            if isinstance(what, str):
                go_back(population)
                continue
            releases.append(ReleaseRecord(name * 64, population, 0, "x", share=what))
            for each in own if population is None else (population,):
                own[each].add(name * 64)
        for population in own:
            for _ in range(2 * len(releases) + 1):
                if not go_back(population):
                    break
            assert rolled_back(releases, population) == []


class TestStandings:
    def model(self, model_id: str, *, task_id: str | None = None) -> ModelRecord:
        return ModelRecord(model_id, b"{}", "1" * 64, BlobId(model_id, 4), 0, task_id=task_id)

    def of(self, history: list[ReleaseRecord], *candidates: CandidateRecord) -> Standing:
        task_id = candidates[0].task_id if candidates else None
        return standings([self.model(B, task_id=task_id)], history, candidates)[B]

    def candidate(self, state: CandidateState, reason: str = "") -> CandidateRecord:
        return CandidateRecord(B, "t", 1, state, 0, reason=reason)

    def test_released_and_retired(self) -> None:
        assert self.of([released(B)]) == Standing(ModelState.RELEASED, 1.0)
        assert self.of([released(A), released(B, 0.1)]) == Standing(ModelState.RELEASED, 0.1)
        assert self.of([released(B), released(A, 0.25)]) == Standing(ModelState.RELEASED, 0.75)
        assert self.of([released(B), released(A)]).state is ModelState.RETIRED
        two = [released(B), released(A, population="beta")]
        assert self.of(two).state is ModelState.RELEASED  # all but beta still have it
        assert standings([self.model(A)], two, ())[A].state is ModelState.RELEASED

    def test_candidates(self) -> None:
        assert self.of([]).state is ModelState.CANDIDATE  # imported
        assert self.of([], self.candidate(CandidateState.WAITING)).reason == "its gates have not decided yet"
        assert self.of([], self.candidate(CandidateState.PASSED)).state is ModelState.CANDIDATE
        failed = self.of([], self.candidate(CandidateState.FAILED, "too weak"))
        assert failed == Standing(ModelState.REJECTED, 0.0, "too weak")
        assert self.of([released(B)], self.candidate(CandidateState.FAILED, "too weak")).state is ModelState.RELEASED

    def test_a_rounds_by_product(self) -> None:
        assert standings([self.model(B, task_id="t")], [], ())[B].state is ModelState.ROUND
