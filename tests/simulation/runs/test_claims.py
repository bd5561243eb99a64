"""The papers' claims at their fairest tests: what goes before what, what a reason needs, the page that tells of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError
from simulation.program.reports import RESULTS_HEAD, report
from simulation.runs import claims
from simulation.runs.claims import JudgedClaim, PaperClaim, Trial
from simulation.runs.experiment import (
    Claim,
    Column,
    Experiment,
    Faces,
    Job,
    Results,
    Row,
    Setting,
    Table,
    Trains,
    markdown,
)
from simulation.runs.reproduced import EXPERIMENTS, Options

PAGE = Path(__file__).resolve().parents[3] / "docs" / "results.md"
BETTER = PaperClaim("Paper.better", "Table 1", "theirs is better")


def trial(
    verdict: str,
    *,
    faces: Faces = "rendered",
    trains: Trains = "adapter",
    place: int = 0,
    runs: int = 3,
    study: str = "a",
) -> Trial:
    difference = "not measured" if verdict == "not measured" else "+1.00 ± 0.10 (EER)" if runs > 1 else "+1.00 (EER)"
    claim = Claim("theirs is better", "theirs", "ours", "eer", kind="paper", of=BETTER.name)
    return Trial(study, claim, Setting("", faces, trains, place), difference, verdict, runs, study.upper())


def verdict_of(*trials: Trial) -> str:
    verdicts = {claims.judged([BETTER], order)[0].verdict for order in (trials, trials[::-1])}
    (only,) = verdicts  # whatever order they come in
    return only


@pytest.mark.parametrize(
    ("fair", "unfair"),
    [
        (trial("does not hold", faces="real"), trial("holds", trains="network")),
        (trial("does not hold", trains="network"), trial("holds", trains="blocks")),
        (trial("does not hold", trains="blocks"), trial("holds")),
        (trial("does not hold", place=0), trial("holds", place=1)),
        (trial("does not hold"), trial("holds on average", faces="real", runs=1)),
    ],
    ids=["real faces", "the whole network", "the last blocks", "an earlier place", "an interval"],
)
def test_an_unfair_success_does_not_beat_a_fair_failure(fair: Trial, unfair: Trial) -> None:
    assert verdict_of(fair, unfair) == "does not hold"
    assert verdict_of(replace(fair, verdict="holds"), replace(unfair, verdict="does not hold")) == "holds"


def test_of_equally_fair_tests_the_least_favourable_counts() -> None:
    assert verdict_of(trial("holds"), trial("holds on average")) == "holds on average"
    assert verdict_of(trial("holds"), trial("does not hold"), trial("holds on average")) == "does not hold"


def test_what_is_not_measured_is_no_test() -> None:
    assert verdict_of(trial("not measured", faces="real"), trial("does not hold")) == "does not hold"
    assert verdict_of(trial("not measured", faces="real"), trial("not measured")) == "not measured"
    assert verdict_of() == "not measured"


def test_the_summary_counts_each_claim_once_and_hides_no_test() -> None:
    other = PaperClaim("Paper.other", "Table 2", "theirs is faster")
    trials = [trial("does not hold", faces="real", study="b"), trial("holds"), trial("not measured", study="c")]
    found = claims.judged([BETTER, other], trials)
    text = claims.summary(found, {"Paper": "Somebody (2021)"})
    assert "**2 claims: 0 hold, 0 hold on average, 1 do not hold (0 by more than chance), 1 are not measured.**" in text
    assert "| Somebody (2021) | 2 | 0 | 0 | 1 | 0 | 1 |" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| theirs is better | Table 1 |")]
    assert (
        "[b][b]: real faces, an adapter trained; 3 seeds | +1.00 ± 0.10 (EER) | does not hold, within chance |" in line
    )
    assert line.endswith("| [a][a]: holds; [c][c]: not measured |")
    assert "[b]: #b" in text.splitlines()
    told = claims.as_mapping(found)
    assert told["verdicts"] == {"does not hold": 1, "holds on average": 0, "holds": 0, "not measured": 1}
    assert [each["here"] for each in told["claims"][0]["others"]] == ["holds", "not measured"]


@pytest.mark.parametrize(
    ("difference", "text", "is_contradicted"),
    [
        ("-0.29 ± 0.16 (EER)", "better", True),
        ("-0.12 ± 0.12 (EER)", "better", False),
        ("-0.01 ± 0.02 (EER)", "better", False),
        ("-3.00 (EER)", "better", False),
        ("not measured", "better", False),
        ("-1.60 ± 0.40 (EER)", "as good (within 1 point)", True),
        ("+1.60 ± 0.40 (EER)", "as good (within 1 point)", True),
        ("+1.60 ± 0.60 (EER)", "as good (within 1 point)", False),
    ],
)
def test_no_difference_is_told_from_the_contrary(difference: str, text: str, is_contradicted: bool) -> None:
    failed = trial("does not hold")
    failed = replace(failed, difference=difference, claim=replace(failed.claim, text=text))
    found = claims.judged([BETTER], [failed])
    assert found[0].is_contradicted == is_contradicted
    page, told = claims.summary(found, {"Paper": "Somebody (2021)"}), claims.as_mapping(found)
    assert f"1 do not hold ({int(is_contradicted)} by more than chance)" in page
    assert ("does not hold, **by more than chance** |" if is_contradicted else "does not hold, within chance |") in page
    assert told["num_contradicted"] == int(told["claims"][0]["is_contradicted"]) == int(is_contradicted)


def test_a_reason_needs_an_experiment_that_shows_it() -> None:
    why = Trial("a", Claim("why: no room", "x", "y", "eer", kind="why"), Setting(), "+0.01 ± 0.10 (EER)", "holds", 3)
    failed = trial("does not hold")

    def answer(verdict: str, *shown: tuple[str, str, str]) -> JudgedClaim:
        claim = replace(BETTER, reason="there is no room", shown=shown)
        return claims.judged([claim], [failed, replace(why, verdict=verdict)])[0]

    assert answer("holds", ("a", "why: no room", "holds")).is_explained
    assert not answer("does not hold", ("a", "why: no room", "holds")).is_explained
    assert not answer("holds", ("b", "why: no room", "holds")).is_explained
    assert not answer("holds").is_explained
    told = claims.summary([answer("does not hold", ("a", "why: no room", "holds"))], {"Paper": "Somebody"})
    assert "an experiment shows the reason of 0.\n" in told
    assert "points to one" not in told
    assert "there is no room" not in told


def test_an_interval_that_includes_zero_shows_no_reason() -> None:
    why = Trial("a", Claim("why: room", "x", "y", "eer", kind="why"), Setting(), "+0.01 ± 0.10 (EER)", "holds", 3)
    for verdict, said in (("holds", "| there is room |"), ("holds on average", "| *likely*: there is room |")):
        claim = replace(BETTER, reason="there is room", shown=(("a", "why: room", verdict),))
        (answer,) = claims.judged([claim], [trial("does not hold"), replace(why, verdict=verdict)])
        assert answer.is_explained
        assert answer.is_shown == claims.as_mapping([answer])["claims"][0]["is_shown"] == (verdict == "holds")
        assert said in claims.summary([answer], {"Paper": "Somebody"})


def measure(job: Job) -> dict[str, float]:
    raise AssertionError(job)


def small_study() -> Experiment:
    rows = (Row("ours", "Ours", {}), Row("theirs", "Theirs", {}))
    asked = (
        Claim("better", "ours", "theirs", "eer", kind="paper", of="FedFace.start"),
        Claim("hard: better", "theirs", "ours", "eer", kind="paper", of="FedFace.start"),
        Claim("better", "ours", "theirs", "tar", kind="paper", of="FedFace.fedavg"),
        Claim("better than nothing", "ours", "", "eer"),
    )
    columns = (Column("EER", "eer"), Column("TAR", "tar"))
    settings = (Setting(place=1), Setting("hard", faces="real"))
    return Experiment("fedface", "Small", measure, (Table("One", rows, columns),), asked, settings=settings)


def small_section(*, without: tuple[str, int] = ("", 0)) -> str:
    figures = {"ours": 0.5, "theirs": 0.25}
    records = {(row, seed): {"metrics": {"eer": eer + 0.01 * seed}} for row, eer in figures.items() for seed in (0, 1)}
    records.pop(without, None)
    return markdown(Results(small_study(), (0, 1), records), command="mien-sim reproduce fedface --seeds 2")


def test_a_page_gives_back_what_was_measured() -> None:
    found = claims.trials_of([small_section()], lambda _: small_study())
    told = [(each.claim.metric, each.setting.faces, each.difference, each.verdict, each.num_seeds) for each in found]
    assert told == [
        ("eer", "rendered", "+25.00 ± 0.00 (EER)", "holds", 2),
        ("eer", "real", "-25.00 ± 0.00 (EER)", "does not hold", 2),
        ("tar", "rendered", "not measured", "not measured", 2),
        ("eer", "rendered", "+50.50 ± 6.35 (EER)", "holds", 2),
    ]
    assert found[0].section == "Small"


def test_a_test_has_the_seeds_of_its_rows_and_not_of_its_section() -> None:
    """Theirs was measured under one seed of three, ours under two: a difference has one."""
    seeds = {"ours": (0, 1), "theirs": (0,)}
    records = {(row, seed): {"metrics": {"eer": 0.5}} for row in seeds for seed in seeds[row]}
    section = markdown(Results(small_study(), (0, 1, 2), records), command="mien-sim reproduce fedface --seeds 3")
    found = claims.trials_of([section], lambda _: small_study())
    assert [each.num_seeds for each in found] == [1, 1, 1, 2]
    with pytest.raises(CorruptDataError, match="'Small' has no runs of fedface's row theirs"):
        claims.trials_of([section.replace("| Theirs |", "| Somebody |")], lambda _: small_study())


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"does not have: Paper\.worse"):
        claims.judged(
            [BETTER], [replace(trial("holds"), claim=Claim("x", "a", "b", "eer", kind="paper", of="Paper.worse"))]
        )
    with pytest.raises(ConfigError, match="of kind paper, and a test of no paper"):
        Claim("x", "a", "b", "eer", kind="paper")
    with pytest.raises(ConfigError, match="settings that the study lacks: soft"):
        replace(small_study(), claims=(Claim("x", "ours", "theirs", "eer", setting="soft"),))
    with pytest.raises(CorruptDataError, match="'Small' tells of a claim that fedface does not make: 'better than'"):
        claims.trials_of([small_section().replace("better than nothing", "better than")], lambda _: small_study())
    with pytest.raises(CorruptDataError, match="a claim that fedface does not make: 'broken'"):
        claims.trials_of([small_section() + "| broken |\n"], lambda _: small_study())
    with pytest.raises(CorruptDataError, match="a claim that fedface does not make: 'better'"):
        claims.trials_of([small_section().replace("| holds |", "| held |")], lambda _: small_study())


@pytest.fixture(scope="module")
def studies() -> dict[str, Experiment]:
    return {name: Options(name).study() for name in EXPERIMENTS}


def test_each_claim_of_a_paper_is_asked_and_each_reason_names_a_claim(studies: dict[str, Experiment]) -> None:
    known, sources = claims.paper_claims()
    assert len(sources) == 5
    asked = {claim.of for study in studies.values() for claim in study.claims} - {""}
    assert asked == {claim.name for claim in known}
    texts = {(name, claim.text) for name, study in studies.items() for claim in study.claims}
    shown = [each for claim in known for each in claim.shown]
    assert [each for each in shown if each[:2] not in texts or each[2] not in claims.VERDICTS] == []
    assert all(bool(claim.reason) == bool(claim.shown) for claim in known)


def test_the_page_of_results_tells_what_its_sections_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = claims.sections_of(text)
    assert text == claims.page_of(RESULTS_HEAD, claims.merged(sections, []), claims.judged_of(sections))


def test_a_page_keeps_the_sections_of_which_no_records_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "results.md"
    whole = PAGE.read_text(encoding="utf-8")
    start = whole.index(claims.SUMMARY)
    page.write_text(whole[:start] + whole[whole.index("\n## ", start) + 1 :], encoding="utf-8")
    report(page, None, as_json=True)
    assert page.read_text(encoding="utf-8") == whole
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == [str(page)]
    assert sum(told["summary"]["verdicts"].values()) == told["summary"]["num_claims"] == len(claims.paper_claims()[0])
    (tmp_path / "notes.md").write_text("# Notes\n")
    with pytest.raises(AlreadyExistsError, match="is no page of results"):
        report(tmp_path / "notes.md", None, as_json=True)
    assert (tmp_path / "notes.md").read_text() == "# Notes\n"


def test_a_section_takes_the_place_of_the_same_study() -> None:
    old = claims.sections_of(PAGE.read_text(encoding="utf-8"))
    new = old[1].partition("\n")[0] + "\n\n`mien-sim reproduce spreadout --seeds 3`\n"
    assert claims.merged(old, [new]) == [old[0], new, *old[2:]]
