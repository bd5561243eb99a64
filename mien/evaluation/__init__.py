"""Evaluation of face recognisers: arrays in, records out.

The protocols know no images and no files. Scores are cosines, accepted iff >= threshold; every rate comes with its
counts; what the scores do not support raises UndefinedMetricError, never a NaN. Terms are those of ISO/IEC 2382-37 and
19795-1 (mated, non-mated, FMR, FNMR, FTE).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mien._door import door

if TYPE_CHECKING:
    from mien.evaluation.fairness import Differential, GroupAccuracy, differential, rates_by_group
    from mien.evaluation.fte import CaptureCounts, SystemRates, generalised_rates, system_rates
    from mien.evaluation.gates import Evidence, Monitors, SetEvidence, judge
    from mien.evaluation.identification import (
        OpenSetPoint,
        SearchResult,
        cmc,
        mean_tpir,
        open_set_at,
        open_set_at_fpir,
        search,
    )
    from mien.evaluation.intervals import Interval, bootstrap_by_identity, bootstrap_difference, rule_of_three
    from mien.evaluation.kfold import FoldAccuracy, accuracy_at, best_threshold, kfold_accuracy
    from mien.evaluation.personalised import (
        OverClients,
        fedfr_pr_at_far,
        fedfr_tpr_at_fpr,
        personalised_search,
        personalised_verification,
    )
    from mien.evaluation.records import MetricRecord, Provenance, dataset_digest
    from mien.evaluation.scores import (
        Comparisons,
        ScoreHistogram,
        all_pairs,
        all_pairs_histogram,
        normalise,
        pair_scores,
        pairs_with_histogram,
    )
    from mien.evaluation.templates import Templates, mean_templates, pool_templates
    from mien.evaluation.verification import (
        DetCurve,
        EqualErrorRate,
        NotMeasurable,
        OperatingPoint,
        det_curve,
        equal_error_rate,
        point_at_fmr,
        rates_at,
        tar_at_fmrs,
    )

__all__ = [
    "CaptureCounts",
    "Comparisons",
    "DetCurve",
    "Differential",
    "EqualErrorRate",
    "Evidence",
    "FoldAccuracy",
    "GroupAccuracy",
    "Interval",
    "MetricRecord",
    "Monitors",
    "NotMeasurable",
    "OpenSetPoint",
    "OperatingPoint",
    "OverClients",
    "Provenance",
    "ScoreHistogram",
    "SearchResult",
    "SetEvidence",
    "SystemRates",
    "Templates",
    "accuracy_at",
    "all_pairs",
    "all_pairs_histogram",
    "best_threshold",
    "bootstrap_by_identity",
    "bootstrap_difference",
    "cmc",
    "dataset_digest",
    "det_curve",
    "differential",
    "equal_error_rate",
    "fedfr_pr_at_far",
    "fedfr_tpr_at_fpr",
    "generalised_rates",
    "judge",
    "kfold_accuracy",
    "mean_templates",
    "mean_tpir",
    "normalise",
    "open_set_at",
    "open_set_at_fpir",
    "pair_scores",
    "pairs_with_histogram",
    "personalised_search",
    "personalised_verification",
    "point_at_fmr",
    "pool_templates",
    "rates_at",
    "rates_by_group",
    "rule_of_three",
    "search",
    "system_rates",
    "tar_at_fmrs",
]

_HOME_OF: Final = {
    **dict.fromkeys(
        ("Differential", "GroupAccuracy", "differential", "rates_by_group"),
        "fairness",
    ),
    **dict.fromkeys(
        (
            "CaptureCounts",
            "SystemRates",
            "generalised_rates",
            "system_rates",
        ),
        "fte",
    ),
    **dict.fromkeys(
        (
            "Evidence",
            "Monitors",
            "SetEvidence",
            "judge",
        ),
        "gates",
    ),
    **dict.fromkeys(
        (
            "OpenSetPoint",
            "SearchResult",
            "cmc",
            "mean_tpir",
            "open_set_at",
            "open_set_at_fpir",
            "search",
        ),
        "identification",
    ),
    **dict.fromkeys(
        (
            "Interval",
            "bootstrap_by_identity",
            "bootstrap_difference",
            "rule_of_three",
        ),
        "intervals",
    ),
    **dict.fromkeys(
        (
            "FoldAccuracy",
            "accuracy_at",
            "best_threshold",
            "kfold_accuracy",
        ),
        "kfold",
    ),
    **dict.fromkeys(
        (
            "OverClients",
            "fedfr_pr_at_far",
            "fedfr_tpr_at_fpr",
            "personalised_search",
            "personalised_verification",
        ),
        "personalised",
    ),
    **dict.fromkeys(
        (
            "MetricRecord",
            "Provenance",
            "dataset_digest",
        ),
        "records",
    ),
    **dict.fromkeys(
        (
            "Comparisons",
            "ScoreHistogram",
            "all_pairs",
            "all_pairs_histogram",
            "normalise",
            "pair_scores",
            "pairs_with_histogram",
        ),
        "scores",
    ),
    **dict.fromkeys(
        (
            "Templates",
            "mean_templates",
            "pool_templates",
        ),
        "templates",
    ),
    **dict.fromkeys(
        (
            "DetCurve",
            "EqualErrorRate",
            "NotMeasurable",
            "OperatingPoint",
            "det_curve",
            "equal_error_rate",
            "point_at_fmr",
            "rates_at",
            "tar_at_fmrs",
        ),
        "verification",
    ),
}

__getattr__, __dir__ = door(__name__, _HOME_OF)
