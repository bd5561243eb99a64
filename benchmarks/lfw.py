"""LFW View 2 through Mien's own pipeline: raw images, YuNet, five-point alignment, pretrained SFace, mirrored sum.

Full: ten-fold accuracy over all 6000 pairs. Quick: accuracy on the 600 pairs of fold 1, at the threshold that is best
on 100 pairs of fold 2, its first 50 mated and its first 50 non-mated ones; with the first 100 lines of that fold, which
are all mated, accuracy alone would choose a threshold that accepts everybody. Quick is one fold and no LFW result.

LFW is for research, non-commercial use.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import _common
from device_sdk.models.packaged import sface_path
from mien import format as fmt
from mien.backbones import layout_of
from mien.backbones.importers import import_sface
from mien.evaluation import (
    NotMeasurable,
    Provenance,
    accuracy_at,
    best_threshold,
    det_curve,
    tar_at_fmrs,
)
from mien.evaluation.protocols import lfw
from mien.layout import model_id
from mien.shell.pages import Facts, Figure, Report, Table, Tile, Tiles, columns, render
from mien.specs import to_mapping
from simulation.faces.listed import EmbeddedSamples, embed_named, read_pairs
from simulation.pages.figures import NamedCurve, det_chart, roc_chart

REFERENCE: Final = 0.9942
REFERENCE_NAME: Final = "0.9942 +- 0.0037: same weights and images, alignment and embedding by OpenCV 4.12"

# Lines of pairs.txt, from 0: fold 1 is 0..599; of fold 2 the first 50 mated and the first 50 non-mated pairs.
QUICK_TEST: Final = tuple(range(600))
QUICK_THRESHOLD: Final = (*range(600, 650), *range(900, 950))


def main() -> None:
    """Run the benchmark from the command line."""
    parser = _common.options("lfw", (__doc__ or "").split("\n\n")[0])
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write an HTML report with DET and ROC curves")
    args = parser.parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    started = time.monotonic()
    folder = _common.data_root() / "lfw"
    pairs = read_pairs(folder)
    backbone, theta = import_sface(sface_path().read_bytes())
    needed = pairs.subset(QUICK_TEST + QUICK_THRESHOLD) if args.quick else pairs
    lists = [("pairs.txt", needed.sha256)]
    embedded = embed_named(backbone, folder / "images", needed.samples, lists, _common.progress, what="LFW")
    provenance = Provenance(
        dataset="lfw-view2, raw images" + (" (quick part)" if args.quick else ""),
        dataset_sha256=embedded.dataset_sha256,
        model_id=model_id(layout_of(backbone).sha256, theta),
        commit=_common.commit(),
        command=_common.command(),
    )
    scores = lfw.score_pairs(needed, embedded.samples, embedded.embeddings, failed=embedded.failed)
    figures = _quick(scores) if args.quick else _full(needed, embedded, provenance)
    result = {
        **figures,
        "fte": len(embedded.failed),
        "samples": len(needed.samples),
        "samples_with_several_faces": embedded.num_multiple,
        "reference": REFERENCE_NAME,
        "ratio_to_reference": round(figures["accuracy"] / REFERENCE, 5),
        "machine": _common.machine(),
        "duration_s": round(time.monotonic() - started, 1),
        "terms": "LFW: research, non-commercial use",
        "provenance": to_mapping(provenance),
    }
    if args.report:
        _write_report(args.report, scores, result)
    return result


def _full(pairs: lfw.PairList, embedded: EmbeddedSamples, provenance: Provenance) -> dict[str, Any]:
    result = lfw.evaluate(pairs, embedded.samples, embedded.embeddings, failed=embedded.failed)
    system, algorithm = result.system, result.algorithm
    return {
        "protocol": f"{lfw.PROTOCOL} version {lfw.VERSION}: threshold of each fold from the other nine",
        "accuracy": round(system.mean, 6),
        "std": round(system.std_population, 6),
        "std_of": "population deviation over 10 folds",
        "standard_error": round(system.standard_error, 6),
        "accuracy_algorithm_level": round(algorithm.mean, 6),
        "pairs": len(pairs.pairs),
        "mated": system.num_mated,
        "non_mated": system.num_non_mated,
        "mean_threshold": round(1 - system.mean_threshold / 2, 4),
        "fold_accuracies": [round(a, 6) for a in system.accuracies],
        "records": [to_mapping(r) for r in result.records(provenance, rng=np.random.default_rng(provenance.seed))],
    }


def _quick(scores: lfw.PairScores) -> dict[str, Any]:
    test, chosen = np.arange(len(QUICK_TEST)), np.arange(len(QUICK_TEST), len(scores.pairs.pairs))
    chosen = chosen[~scores.failed[chosen]]
    mated, distances = scores.pairs.mated, scores.distances
    threshold = best_threshold(distances[chosen], mated[chosen])
    accuracy = accuracy_at(distances[test], mated[test], threshold)
    return {
        "protocol": "quick: the 600 pairs of fold 1 at the threshold best on 50 mated and 50 non-mated pairs of fold "
        "2; one fold, no LFW View 2 result",
        "accuracy": round(accuracy, 6),
        "std": round(math.sqrt(accuracy * (1 - accuracy) / len(test)), 6),
        "std_of": "binomial, of one fold",
        "pairs": len(test),
        "mated": int(mated[test].sum()),
        "non_mated": int((~mated[test]).sum()),
        "mean_threshold": round(1 - threshold / 2, 4),
    }


def _write_report(path: Path, scores: lfw.PairScores, result: Mapping[str, Any]) -> None:
    """Write error curves over the pooled pairs and the figures above as one HTML page."""
    comparisons = scores.comparisons()
    curve = det_curve(comparisons)
    named = [NamedCurve("SFace 2021dec", curve)]
    pooled = f"{comparisons.num_mated} mated and {comparisons.num_non_mated} non-mated pairs, pooled"
    rows = tuple(
        (f"{100 * (p.target_fmr or 0.0):g} %", "not measurable", "", "")
        if isinstance(p, NotMeasurable)
        else (
            f"{100 * (p.target_fmr or 0.0):g} %",
            fmt.percent(p.tar),
            fmt.fraction(p.num_false_matches, p.num_non_mated),
            fmt.score(p.threshold),
        )
        for p in tar_at_fmrs(curve)
    )
    command = _common.command()
    page = Report(
        "Labeled Faces in the Wild",
        f"SFace through Mien's own detector and alignment, on raw images; {result['protocol']}.",
        (
            Tiles(
                "headlines",
                "",
                (
                    Tile(
                        "Accuracy",
                        fmt.percent(result["accuracy"]),
                        f"± {fmt.percent(result['std'])}, {result['std_of']}",
                    ),
                    Tile(
                        "Pairs", fmt.count(result["pairs"]), f"{result['mated']} mated, {result['non_mated']} non-mated"
                    ),
                    Tile("Failures to enrol", fmt.count(result["fte"]), f"of {fmt.count(result['samples'])} images"),
                ),
            ),
            Figure(
                "det",
                "Error trade-off",
                (det_chart(named),),
                f"DET of {pooled}.",
                f"DET curve of {pooled}.",
                command=command,
            ),
            Figure("roc", "ROC", (roc_chart(named),), f"ROC of {pooled}.", f"ROC curve of {pooled}.", command=command),
            Table(
                "points",
                "Operating points",
                "Mated pairs accepted at the smallest observed score that keeps the target.",
                columns("Target FMR", "#Accepted", "#False matches", "#Threshold"),
                rows,
                command=command,
            ),
            Facts("made", "How this was made", tuple((key, str(value)) for key, value in result["provenance"].items())),
        ),
        (str(result["terms"]), str(result["machine"])),
    )
    path.write_text(render(page), encoding="utf-8")


if __name__ == "__main__":
    main()
