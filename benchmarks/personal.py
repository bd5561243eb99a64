"""Personal models on real faces: what they accept and whom they mistake, beside the released model alone.

Registered are people of LFW with six pictures or more, alone on a phone or four together, with 3 or 5 pictures each;
their other pictures are the mated probes. Non-mated: a picture each of 400 people of LFW who are registered nowhere,
and, where several share a phone, the others' probes. Public faces are those of 60 people of CelebA; the released
threshold has a false match rate of 0.1 % over pictures of CelebA's other people. Both sets are for research, not for
commercial use. Intervals: 95 %, phones drawn again 2,000 times. Quick: 5 pictures of 12 people, and fewer others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import _common
from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.faces.crops import MASTER, fit_crops
from device_sdk.models.packaged import sface_path
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones.importers import import_model
from mien.evaluation.scores import all_pairs
from mien.evaluation.verification import det_curve, point_at_fmr
from mien.methods.base import Embeddings
from mien.methods.personal_branch import BranchSpec, Judgement, judge, template
from simulation.faces.datasets import digest, find_people, read_people

FMR: Final = 1e-3
MIN_IMAGES: Final = 6
STRANGERS: Final = 400
PUBLIC_PEOPLE: Final = 60
PER_PUBLIC_PERSON: Final = 10
PER_OTHER_PERSON: Final = 5
MAX_IMAGES: Final = 15
QUICK: Final = {"people": 12, "strangers": 50, "images": 8, "others": 40, "public_images": 5}
SEVERAL: Final = 4
COUNTS: Final = (3, 5)
REPLICATES: Final = 2_000
_SEED: Final = 0

Rates = NDArray[np.float64]


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("personal", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    began = time.process_time()
    faces = _read(_common.data_root(), quick=args.quick)
    rows = []
    for per_phone in (1, SEVERAL):
        for count in COUNTS[-1:] if args.quick else COUNTS:
            rows.append(_row(faces, per_phone, count))
            _common.progress(f"{per_phone} on a phone, {count} pictures: {rows[-1]['accepted']}")
    if not args.json:
        _print(rows)
    return {
        "benchmark": "personal",
        "quick": args.quick,
        "people": len(faces.registered),
        "strangers": len(faces.strangers),
        "public_people": len(np.unique(faces.public_labels)),
        "released_threshold": round(faces.threshold, 4),
        "threshold_non_mated": faces.num_non_mated,
        "rows": rows,
        "dataset_sha256": faces.dataset_sha256,
        "cpu_s": round(time.process_time() - began, 1),
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


@dataclass(frozen=True)
class _Faces:
    """Embeddings of length 1: each registered person's (N, D), strangers' (S, D), public ones (M, D) and whose."""

    registered: Sequence[Embeddings] = field(repr=False)
    strangers: Embeddings = field(repr=False)
    public: Embeddings = field(repr=False)
    public_labels: NDArray[np.int64] = field(repr=False)
    threshold: float
    num_non_mated: int
    dataset_sha256: Mapping[str, str]


def _read(root: Path, *, quick: bool) -> _Faces:
    rng = np.random.default_rng(_SEED)
    lfw, celeba = find_people(root / "lfw" / "images"), find_people(root / "celeba112", min_images=PER_OTHER_PERSON)
    often = [name for name, files in sorted(lfw.items()) if len(files) >= MIN_IMAGES]
    rarely = [name for name, files in sorted(lfw.items()) if len(files) < MIN_IMAGES]
    often = [str(name) for name in rng.permutation(often)][: QUICK["people"] if quick else None]
    rarely = [str(name) for name in rng.permutation(rarely)][: QUICK["strangers"] if quick else STRANGERS]
    models = [str(name) for name in rng.permutation(sorted(celeba))]
    public, others = models[:PUBLIC_PEOPLE], models[PUBLIC_PEOPLE:][: QUICK["others"] if quick else None]
    embed = _Embedder()
    raw = {name: lfw[name][: QUICK["images"] if quick else MAX_IMAGES] for name in often}
    raw |= {name: lfw[name][:1] for name in rarely}
    crops = {name: celeba[name][: QUICK["public_images"] if quick else PER_PUBLIC_PERSON] for name in public}
    crops |= {name: celeba[name][:PER_OTHER_PERSON] for name in others}
    lfw_ND, lfw_labels = embed(raw, aligned=False, what="LFW")
    celeba_ND, celeba_labels = embed(crops, aligned=True, what="CelebA")
    is_public = celeba_labels < len(public)
    comparisons = all_pairs(celeba_ND[~is_public], celeba_labels[~is_public])
    point = point_at_fmr(det_curve(comparisons), FMR)
    return _Faces(
        registered=[lfw_ND[lfw_labels == number] for number in range(len(often))],
        strangers=lfw_ND[lfw_labels >= len(often)],
        public=celeba_ND[is_public],
        public_labels=celeba_labels[is_public],
        threshold=point.threshold,
        num_non_mated=point.num_non_mated,
        dataset_sha256={"lfw": digest(raw), "celeba112": digest(crops)},
    )


class _Embedder:
    """SFace, as released; says how far it is."""

    def __init__(self) -> None:
        self._model = import_model(sface_path().read_bytes(), sface_path().name)
        self._runtime = TorchRuntime(self._model.spec, self._model.layout)

    def __call__(
        self, people: Mapping[str, list[Path]], *, aligned: bool, what: str
    ) -> tuple[Embeddings, NDArray[np.int64]]:
        """Return embeddings (N, D) of length 1 of these people's pictures, and whose each is, in their order."""
        _common.progress(f"{what}: reading {sum(map(len, people.values()))} pictures of {len(people)} people")
        found = read_people(people, FacePipeline(MASTER, None, ChoiceRule.CENTRE, aligned=aligned))
        raw_ND = self._runtime.embed(self._model.theta, fit_crops(found.crops, self._model.spec.input))
        unit_ND = (raw_ND / np.linalg.norm(raw_ND, axis=1, keepdims=True)).astype(np.float32)
        return unit_ND, found.labels


def _row(faces: _Faces, per_phone: int, count: int) -> dict[str, Any]:
    """Return what phones with so many people, of so many pictures each, accept."""
    able = [number for number, own_ND in enumerate(faces.registered) if len(own_ND) > count]
    phones = [able[start : start + per_phone] for start in range(0, len(able) - per_phone + 1, per_phone)]
    outcomes = [_phone([faces.registered[number] for number in phone], count, faces) for phone in phones]
    accepted, false = (np.stack(rates) for rates in zip(*(each.rates for each in outcomes), strict=True))
    used = np.array([each.is_used for each in outcomes], np.float64)
    return {
        "registered_on_a_phone": per_phone,
        "pictures": count,
        "people": sum(map(len, phones)),
        "phones": len(phones),
        "mated_probes": sum(each.num_mated for each in outcomes),
        "non_mated_probes": sum(each.num_non_mated for each in outcomes),
        "used_on": _with_interval(used),
        "accepted": {form: _with_interval(accepted[:, i]) for i, form in enumerate(_FORMS)},
        "false_matches": {form: _with_interval(false[:, i]) for i, form in enumerate(_FORMS)},
        "as_used_less_released": {
            "accepted": _with_interval(accepted[:, 1] - accepted[:, 0]),
            "false_matches": _with_interval(false[:, 1] - false[:, 0]),
        },
        "used_and_accepts": _changes(outcomes),
    }


_FORMS: Final = ("released", "as_used", "always_personal")


@dataclass(frozen=True)
class _Outcome:
    """A phone's mean rates over its people, (2, 3): accepted and false matches, of each of `_FORMS`."""

    rates: tuple[Rates, Rates] = field(repr=False)
    is_used: bool
    num_mated: int
    num_non_mated: int


def _phone(people: Sequence[Embeddings], count: int, faces: _Faces) -> _Outcome:
    labels = np.repeat(np.arange(len(people)), count)
    own_ND = np.concatenate([own[:count] for own in people])
    judged = judge(own_ND, labels, faces.public, faces.public_labels, faces.threshold, BranchSpec(), _SEED)
    accepted, false, num_non_mated = [], [], 0
    for number, own in enumerate(people):
        others = [other[count:] for at, other in enumerate(people) if at != number]
        non_mated = np.concatenate([faces.strangers, *others])
        num_non_mated += len(non_mated)
        template_D = template(own[:count])
        accepted.append(_rates(template_D, own[count:], number, judged, faces.threshold))
        false.append(_rates(template_D, non_mated, number, judged, faces.threshold))
    means = np.mean(accepted, axis=0), np.mean(false, axis=0)
    return _Outcome(means, judged.is_better, sum(len(own) - count for own in people), num_non_mated)


def _rates(
    template_D: NDArray[np.float32], probe_ND: Embeddings, number: int, judged: Judgement, threshold: float
) -> Rates:
    """Return the share of probes that pass: released, as the phone would use it, and the branch whatever it is."""
    released = float((probe_ND @ template_D >= threshold).mean())
    branch, own = judged.branch, judged.thresholds[number].value
    personal = float((branch(probe_ND) @ branch(template_D[None])[0] >= own).mean())
    return np.array([released, personal if judged.is_better else released, personal])


def _changes(outcomes: Sequence[_Outcome]) -> dict[str, int]:
    """Return on how many phones where it is used it accepts more of the mated probes, and on how many fewer."""
    changes = np.array([each.rates[0][1] - each.rates[0][0] for each in outcomes if each.is_used])
    return {"better": int((changes > 0).sum()), "worse": int((changes < 0).sum())}


def _with_interval(value_P: Rates) -> dict[str, float]:
    """Return a mean over phones with its 95 % interval, phones drawn again with replacement."""
    rng = np.random.default_rng(_SEED)
    draws = rng.integers(len(value_P), size=(REPLICATES, len(value_P)))
    low, high = np.quantile(value_P[draws].mean(axis=1), (0.025, 0.975))
    return {"mean": round(float(value_P.mean()), 5), "low": round(float(low), 5), "high": round(float(high), 5)}


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        print(f"{row['registered_on_a_phone']} on a phone, {row['pictures']} pictures, {row['people']} people")
        print(f"  used on {_percent(row['used_on'])} of the phones; {row['used_and_accepts']}")
        for form in _FORMS:
            accepted, false = row["accepted"][form], row["false_matches"][form]
            print(f"  {form:<16} accepted {_percent(accepted)}, false matches {_percent(false)}")


def _percent(rate: Mapping[str, float]) -> str:
    return f"{100 * rate['mean']:.2f} % ({100 * rate['low']:.2f}-{100 * rate['high']:.2f})"


if __name__ == "__main__":
    main()
