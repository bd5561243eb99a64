"""What the papers claim, each once, at the fairest of the tests that studies make of it.

Fairness is declared by setting: whose faces, what is trained, and what a study says of its own settings (`Setting`);
how a test ends changes nothing of it. Real faces go before rendered ones, then what trains more goes before what trains
less, then a study's own order; a single run, which has no interval, comes last. Where several tests are equally fair,
the least favourable one counts. Outcomes are read from the tables that `simulation.runs.experiment.markdown` writes, so
that a page of results can be told again without its records.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mien.errors import ConfigError, CorruptDataError
from mien.records import parse_toml
from simulation.runs.experiment import CLAIMS_HEAD, Claim, Experiment, Setting
from simulation.runs.reproduced import EXPERIMENTS, Options

CLAIMS: Final = Path(__file__).parents[1] / "papers" / "claims.toml"
VERDICTS: Final = ("does not hold", "holds on average", "holds", "not measured")
"""Verdicts from the least favourable on; what was not measured is none."""

_TRAINS: Final = ("adapter", "blocks", "network")
_FACES: Final = ("rendered", "real")
_TOLD: Final = {"adapter": "an adapter trained", "blocks": "last blocks trained", "network": "whole network trained"}
_COMMAND: Final = re.compile(r"^`mien-sim reproduce ([a-z_]+) ", re.MULTILINE)
_BOUND: Final = re.compile(r"\(within ([\d.]+)[^)]*\)")
_INTERVAL: Final = re.compile(r"([+-][\d.]+) ± ([\d.]+)")


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a paper: its name "PAPER.NAME", where it stands, and why it fails where it does.

    A reason counts as long as what `shown` names is so: claims by study, text and verdict.
    """

    name: str
    at: str
    text: str
    reason: str = ""
    shown: tuple[tuple[str, str, str], ...] = ()

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Trial:
    """A claim as one study asked it, and how it ended: the difference as the study's table has it, and the verdict.

    `num_seeds` of its rows were measured, which may be fewer than the section's.
    """

    study: str
    claim: Claim
    setting: Setting
    difference: str
    verdict: str
    num_seeds: int
    section: str = ""

    @property
    def has_interval(self) -> bool:
        """Whether more than one run was measured."""
        return "±" in self.difference

    @property
    def is_contradicted(self) -> bool:
        """Whether the whole interval lies where the claim is not so; one that includes zero tells no difference."""
        interval, bound = _INTERVAL.match(self.difference), _BOUND.search(self.claim.text)
        if interval is None:
            return False
        difference, half = float(interval[1]), float(interval[2])
        return abs(difference) - half > float(bound[1]) if bound else difference + half < 0

    @property
    def fairness(self) -> tuple[bool, int, int, int]:
        """The larger the fairer; nothing of it depends on the verdict."""
        setting = self.setting
        return (self.has_interval, _FACES.index(setting.faces), _TRAINS.index(setting.trains), -setting.place)

    @property
    def asked_in(self) -> str:
        """What was asked in, in words."""
        why = [self.setting.why] if self.setting.why else []
        return ", ".join([f"{self.setting.faces} faces", _TOLD[self.setting.trains], *why])


@dataclass(frozen=True)
class JudgedClaim:
    """A paper's claim with all its tests, the fairest first."""

    claim: PaperClaim
    trials: tuple[Trial, ...]
    evidence: tuple[Trial, ...] = ()

    @property
    def fairest(self) -> Trial | None:
        """The test that counts; None where nothing was measured."""
        return self.trials[0] if self.trials and self.trials[0].verdict != "not measured" else None

    @property
    def verdict(self) -> str:
        """The verdict of the fairest test."""
        return self.fairest.verdict if self.fairest else "not measured"

    @property
    def is_contradicted(self) -> bool:
        """Whether the fairest test shows the contrary, and not only no difference."""
        return bool(self.fairest and self.fairest.is_contradicted)

    @property
    def is_explained(self) -> bool:
        """Whether a reason is given and measured claims have the verdicts that it names."""
        wanted = self.claim.shown
        return bool(self.claim.reason and wanted) and [t.verdict for t in self.evidence] == [w[2] for w in wanted]

    @property
    def is_shown(self) -> bool:
        """Whether what shows the reason holds: an interval that includes zero points to a reason and shows none."""
        return self.is_explained and all(test.verdict == "holds" for test in self.evidence)


@functools.cache
def paper_claims() -> tuple[tuple[PaperClaim, ...], Mapping[str, str]]:
    """Return what the papers claim, in the order of the file, and each paper's source."""
    papers = parse_toml(CLAIMS.read_text(encoding="utf-8"), CLAIMS.name)
    claims = [
        PaperClaim(f"{paper}.{name}", said["at"], said["text"], said.get("reason", ""), _shown(said))
        for paper, told in papers.items()
        for name, said in told["claims"].items()
    ]
    return tuple(claims), {paper: told["source"] for paper, told in papers.items()}


def _shown(said: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    return tuple((study, text, verdict) for study, text, verdict in said.get("shown", ()))


def fairest_first(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return tests of one claim, the fairest first, of equally fair ones the least favourable; unmeasured ones last."""
    measured = [test for test in trials if test.verdict != "not measured"]
    worst_first = sorted(measured, key=lambda test: VERDICTS.index(test.verdict))
    ranked = sorted(worst_first, key=lambda test: test.fairness, reverse=True)
    return (*ranked, *(test for test in trials if test.verdict == "not measured"))


def judged(claims: Sequence[PaperClaim], trials: Sequence[Trial]) -> list[JudgedClaim]:
    """Return every claim with its tests; raises ConfigError for a test of a claim that no paper makes."""
    if unknown := sorted({test.claim.of for test in trials} - {"", *(claim.name for claim in claims)}):
        raise ConfigError(f"studies test what {CLAIMS.name} does not have: {', '.join(unknown)}")
    return [
        JudgedClaim(
            claim,
            fairest_first([test for test in trials if test.claim.of == claim.name]),
            tuple(
                test
                for study, text, _ in claim.shown
                for test in trials
                if (test.study, test.claim.text) == (study, text)
            ),
        )
        for claim in claims
    ]


# The page.


def study_of(section: str) -> str:
    """Return the name of the study that a section of the page tells of, empty where it is a sweep's or none."""
    found = _COMMAND.search(section)
    return found[1] if found and found[1] in EXPERIMENTS else ""


def sections_of(text: str) -> list[str]:
    """Return the sections of a page of results that studies and sweeps wrote, as they stand there."""
    parts = re.split(r"(?m)^(?=## )", text)
    return [part.rstrip() + "\n" for part in parts if part.startswith("## ") and not part.startswith(SUMMARY)]


def merged(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return sections in the order in which studies are listed, new ones in the place of old ones of the same title."""
    named = {part.partition("\n")[0]: part for part in (*old, *new)}
    order = [*EXPERIMENTS, ""]
    return sorted(named.values(), key=lambda part: order.index(study_of(part)))


def trials_of(sections: Sequence[str], study: Callable[[str], Experiment] | None = None) -> list[Trial]:
    """Return how each claim of each study ended, as the sections tell.

    Raises CorruptDataError for a claim that the study does not make: the section is of another version.
    """
    make = study or (lambda name: Options(name).study())
    found = list[Trial]()
    for section in sections:
        name = study_of(section)
        if name and CLAIMS_HEAD in section and " --quick" not in section.partition("\nSeeds ")[0]:
            found += _trials(make(name), section)
    return found


def _trials(study: Experiment, section: str) -> Iterator[Trial]:
    title, runs = section.partition("\n")[0].removeprefix("## "), _runs(study, section)
    claims, seen = list(study.claims), Counter[str]()
    for text, difference, verdict in _rows(section):
        same = [claim for claim in claims if claim.text == text]
        if len(same) <= seen[text] or verdict not in VERDICTS:
            raise CorruptDataError(
                f"section {title!r} tells of a claim that {study.name} does not make: {text!r}; render it anew from "
                "its records, or change the text there too"
            )
        claim = same[seen[text]]
        seen[text] += 1
        if untold := sorted(claim.rows - runs.keys()):
            raise CorruptDataError(
                f"section {title!r} has no runs of {study.name}'s row {untold[0]}, of which it tells {text!r}; render "
                "it anew from its records"
            )
        num_seeds = min(runs[name] for name in claim.rows)
        yield Trial(study.name, claim, study.setting_of(claim), difference, verdict, num_seeds, title)


def _runs(study: Experiment, section: str) -> dict[str, int]:
    """Return how many runs a section tells of each row of the study, by the row's name."""
    told, title = dict[tuple[str, str], int](), ""
    for line in section.splitlines():
        if line.startswith("### "):
            title = line.removeprefix("### ")
        label, *_, last = line.removeprefix("| ").removesuffix(" |").split(" | ") if " | " in line else ("", "")
        if last.isdecimal():
            told[title, label] = int(last)
    placed = {(table.title, row.label): row.name for table in study.tables for row in table.rows}
    return {placed[place]: number for place, number in told.items() if place in placed}


def _rows(section: str) -> Iterator[tuple[str, str, str]]:
    lines = section[section.index(CLAIMS_HEAD) :].splitlines()
    for line in [line for line in lines if line.startswith("| ")][1:]:
        text, *rest = line.removeprefix("| ").removesuffix(" |").rsplit(" | ", 2)
        difference, verdict = rest if len(rest) == 2 else ("", "")
        yield text, difference, verdict


SUMMARY: Final = "## What the papers claim"
_RULES: Final = """\
Each claim of the five papers once, at the fairest test that was made of it. Which one that is follows from its setting
and not from how it ended: real faces go before rendered ones, then what trains more of the network before what trains
less, then the order that a study declares of its settings (`simulation/papers/*/*.toml`); a single run, without an
interval, comes last. Of several tests that are equally fair the least favourable counts. All other tests stand in the
last column, and whole in the sections below, as do claims on this project's own methods, and tests that only tell why
another one fails. A difference above zero goes the way that the claim says; a claim *within* so many points is of its
size alone. A claim *does not hold* where the mean of the differences does not go its way: **by more than chance** where
the whole interval lies on the other side, which is the contrary shown, and else *within chance*: no difference could be
told. Where a claim does not hold, a reason stands at the end, if an experiment shows one: there, too, *does not hold*
is how the claim that is named beside it ended, which shows the reason by failing."""


def summary(found: Sequence[JudgedClaim], sources: Mapping[str, str]) -> str:
    """Return the summary as Markdown: counts, a table a paper, and why claims fail."""
    lines = [SUMMARY, "", _RULES, "", *_counts(found, sources)]
    for paper, source in sources.items():
        lines += ["", f"### {source}", "", "| claim | paper | fairest test | difference | here | asked elsewhere |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_line(answer) for answer in found if answer.claim.paper == paper]
    failed = [answer for answer in found if answer.verdict == "does not hold"]
    shown = sum(answer.is_shown for answer in failed)
    likely = sum(answer.is_explained for answer in failed) - shown
    lines += ["", "### Why claims do not hold", ""]
    lines += [f"Of {len(failed)} claims that do not hold, an experiment shows the reason of {shown}."]
    if likely:
        lines += [f"Of {likely} it points to one, marked *likely*: the interval of what would show it includes zero."]
    lines += [""]
    lines += ["| claim | reason | shown by |", "|---|---|---|", *map(_why, failed), ""]
    titles = {test.study: test.section for answer in found for test in (*answer.trials, *answer.evidence)}
    lines += [f"[{study}]: #{anchor(title)}" for study, title in titles.items()]
    return "\n".join(lines) + "\n"


def _counts(found: Sequence[JudgedClaim], sources: Mapping[str, str]) -> list[str]:
    num = Counter(answer.verdict for answer in found)
    contrary = sum(answer.is_contradicted for answer in found)
    counts = f"{num['holds']} hold, {num['holds on average']} hold on average, {num['does not hold']} do not hold"
    lines = [
        f"**{len(found)} claims: {counts} ({contrary} by more than chance), {num['not measured']} are not measured.**",
        "",
        "| paper | claims | hold | hold on average | do not hold | ... by more than chance | not measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for paper, source in sources.items():
        answers = [answer for answer in found if answer.claim.paper == paper]
        of_paper = Counter(answer.verdict for answer in answers)
        holds, on_average, fails, unknown = (
            of_paper[verdict] for verdict in ("holds", "holds on average", "does not hold", "not measured")
        )
        contrary = sum(answer.is_contradicted for answer in answers)
        lines.append(f"| {source} | {len(answers)} | {holds} | {on_average} | {fails} | {contrary} | {unknown} |")
    return lines


def _line(answer: JudgedClaim) -> str:
    claim, test = answer.claim, answer.fairest
    others = answer.trials[1:] if test else answer.trials
    told = Counter(f"{_link(other)}: {other.verdict}" for other in others)
    at = f"{_link(test)}: {test.asked_in}; {_seeds(test)}" if test else "none"
    difference = test.difference if test else "not measured"
    chance = "**by more than chance**" if answer.is_contradicted else "within chance"
    verdict = f"{answer.verdict}, {chance}" if answer.verdict == "does not hold" else answer.verdict
    elsewhere = "; ".join(f"{text} ({number} times)" if number > 1 else text for text, number in told.items())
    bound = _BOUND.search(test.claim.text) if test else None
    text = f"{claim.text} {bound[0]}" if bound else claim.text
    return f"| {text} | {claim.at} | {at} | {difference} | {verdict} | {elsewhere or 'nowhere'} |"


def _seeds(test: Trial) -> str:
    return f"{test.num_seeds} seeds" if test.has_interval else "one seed"


def _why(answer: JudgedClaim) -> str:
    claim = answer.claim
    if not answer.is_explained:
        return f"| {claim.paper}: {claim.text} | not known | no experiment |"
    shown = "; ".join(
        f"{_link(t)}, {t.claim.text.removeprefix('... ')}: {t.difference}, {t.verdict}" for t in answer.evidence
    )
    likely = "" if answer.is_shown else "*likely*: "
    return f"| {claim.paper}: {claim.text} | {likely}{claim.reason} | {shown} |"


def _link(test: Trial) -> str:
    name = f"{test.study}, {test.setting.name}" if test.setting.name else test.study
    return f"[{name}][{test.study}]"


def anchor(title: str) -> str:
    """Return a heading's anchor as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def judged_of(sections: Sequence[str]) -> list[JudgedClaim]:
    """Return every claim of the papers with what sections say of it; none where they test none."""
    trials = trials_of(sections)
    return judged(paper_claims()[0], trials) if any(test.claim.of for test in trials) else []


def page_of(head: str, sections: Sequence[str], found: Sequence[JudgedClaim]) -> str:
    """Return a page of results: the head, the summary where a section tests a paper's claim, and the sections."""
    told = [summary(found, paper_claims()[1])] if found else []
    return "\n".join([head, *told, *sections])


def as_mapping(found: Sequence[JudgedClaim]) -> dict[str, Any]:
    """Return the summary for machines: counts, and each claim with its fairest test and all others."""
    num = Counter(answer.verdict for answer in found)
    return {
        "num_claims": len(found),
        "verdicts": {verdict: num[verdict] for verdict in VERDICTS},
        "num_contradicted": sum(answer.is_contradicted for answer in found),
        "claims": [
            {
                "name": answer.claim.name,
                "at": answer.claim.at,
                "text": answer.claim.text,
                "here": answer.verdict,
                "is_contradicted": answer.is_contradicted,
                "fairest": _mapped(answer.fairest) if answer.fairest else None,
                "others": [_mapped(test) for test in (answer.trials[1:] if answer.fairest else answer.trials)],
                "reason": answer.claim.reason if answer.is_explained and answer.verdict == "does not hold" else None,
                "is_shown": answer.is_shown,
                "shown": [_mapped(test) for test in answer.evidence] if answer.is_explained else [],
            }
            for answer in found
        ],
    }


def _mapped(test: Trial) -> dict[str, Any]:
    return {
        "study": test.study,
        "claim": test.claim.text,
        "setting": test.setting.name,
        "faces": test.setting.faces,
        "trains": test.setting.trains,
        "place": test.setting.place,
        "why": test.setting.why,
        "seeds": test.num_seeds,
        "difference": test.difference,
        "here": test.verdict,
    }
