"""A model measured by a published test protocol on a folder of its data: `mien-sim evaluate`.

Pair protocols are at system level unless a figure's name says otherwise: a sample without a face is a rejection.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.runtimes import load_runtime
from mien.errors import ConfigError, CorruptDataError, NotFoundError, UndefinedMetricError
from mien.evaluation import (
    Comparisons,
    FoldAccuracy,
    SearchResult,
    cmc,
    dataset_digest,
    det_curve,
    equal_error_rate,
    pool_templates,
    rates_by_group,
)
from mien.evaluation.protocols import bins, folders, ijb, lfw, megaface, rfw
from mien.shell import cli, provenance
from mien.shell.files import read_limited
from simulation.faces.datasets import digest, find_people, read_people
from simulation.faces.embedding import embed_images
from simulation.faces.folder_protocol import evaluate_folder, operating_points, origin
from simulation.faces.listed import EmbeddedSamples, Listed, Lists, backbone_of, embed_listed, embed_named, read_pairs
from simulation.faces.models import Model, read_named

MAX_BIN_BYTES: Final = 4 << 30
TARGET_FPIRS: Final = (0.1, 0.01)
RANKS: Final = (1, 5, 10)

Record = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """The data's place, and options that not every protocol has; one that is left alone is None or false."""

    data: Path
    aligned: bool = False
    refined: bool = False
    distractors: int | None = None
    pairs: int | None = None
    seed: int | None = None


def evaluate(model: str, protocol: str, options: Options, *, as_json: bool) -> None:
    """Measure a model (a folder, or a known one's name) by a protocol and print what was found."""
    record = measure(read_named(model), protocol, options)
    record["command"] = provenance.command("mien-sim")
    cli.emit(record, as_json=as_json, human=lambda: _draw(record))


def measure(model: Model, protocol: str, options: Options) -> Record:
    """Return the record of a measurement; raises ConfigError for an option that the protocol does not have."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"--protocol is {protocol!r}; known: {', '.join(PROTOCOLS)}")
    run, takes = PROTOCOLS[protocol]
    for name in ("aligned", "refined", "distractors", "pairs", "seed"):
        value = getattr(options, name)
        if value is not None and value is not False and name not in takes:
            raise ConfigError(f"--{name} does not go with --protocol {protocol}; leave it out")
    return run(model, options)


# Pair lists with folds: LFW, SLLFW, RFW and .bin files.


def evaluate_lfw(model: Model, folder: Path, *, aligned: bool = False) -> Record:
    """Return ten-fold accuracy on LFW View 2 (`folder`/images, `folder`/protocol/pairs.txt)."""
    if aligned:
        raise ConfigError("--aligned does not go with --protocol lfw, whose images are raw")
    return _lfw(model, folder)[0]


def _lfw(model: Model, folder: Path) -> tuple[Record, lfw.LfwResult]:
    pairs = read_pairs(folder)
    lists = [("pairs.txt", pairs.sha256)]
    embedded = embed_named(backbone_of(model), folder / "images", pairs.samples, lists, _tell, what="LFW")
    result = lfw.evaluate(pairs, embedded.samples, embedded.embeddings, failed=embedded.failed)
    return {
        **origin((lfw.PROTOCOL, lfw.VERSION), "LFW View 2", embedded.dataset_sha256, model),
        **_folds(result.system),
        "fte": len(embedded.failed),
        "terms": "LFW: research, non-commercial use",
    }, result


def _whole_lfw(model: Model, options: Options) -> Record:
    record, result = _lfw(model, options.data)
    return {**record, **_beside(result)}


def _sllfw(model: Model, options: Options) -> Record:
    lists = Lists(options.data / "protocol")
    pairs = rfw.parse_sllfw(lists.read("pair_SLLFW.txt"))
    images = options.data / "images"
    embedded = embed_named(backbone_of(model), images, pairs.samples, lists.read_so_far, _tell, what="SLLFW")
    result = lfw.evaluate(pairs, embedded.samples, embedded.embeddings, failed=embedded.failed)
    return {
        **origin((rfw.SLLFW_PROTOCOL, rfw.VERSION), "SLLFW", embedded.dataset_sha256, model),
        **_folds(result.system),
        "fte": len(embedded.failed),
        "terms": "LFW: research, non-commercial use",
        **_beside(result),
    }


def _bin(model: Model, options: Options) -> Record:
    file = _one_bin(options.data)
    pairs = bins.parse_bin(read_limited(file, MAX_BIN_BYTES, what="the pair set"), file.name)
    acquired = embed_images(backbone_of(model), pairs.images, _tell, aligned=True)
    if acquired.failed:
        raise CorruptDataError(
            f"{file.name}: {len(acquired.failed)} images are no crops of 112x112, first {min(acquired.failed)} from 0; "
            "fetch the file again"
        )
    return {
        **origin((bins.PROTOCOL, bins.VERSION), file.stem, pairs.sha256, model),
        **_folds(accuracy := pairs.accuracy(acquired.embeddings)),
        "fte": 0,
        "images": len(pairs.images),
        "alignment": "somebody else's, as the file has it",
        **_thresholds(accuracy),
        **_curve(pairs.comparisons(acquired.embeddings)),
    }


def _one_bin(path: Path) -> Path:
    """Return the `.bin` file at a path, or the only one in the folder there."""
    if path.is_file():
        return path
    found = sorted(path.glob("*.bin"))
    if not found:
        raise NotFoundError(f"there is no .bin file in {path}; name a pair set as insightface publishes them")
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ConfigError(f"{path} holds {len(found)} pair sets; name one of {names} with --data")
    return found[0]


def _rfw(model: Model, options: Options) -> Record:
    backbone, results, groups, digests = backbone_of(model), dict[str, lfw.LfwResult](), dict[str, Record](), []
    for group in rfw.GROUPS:
        lists, people = Lists(options.data / "txts" / group), rfw.QueryGallery((), ())
        pairs = rfw.parse_rfw_pairs(lists.read(f"{group}_pairs.txt"), f"{group}_pairs.txt")
        if lists.has(f"{group}_people.txt"):
            found = rfw.parse_people(lists.read(f"{group}_people.txt"), f"{group}_people.txt")
            people = rfw.query_and_gallery(found)
        samples = tuple(dict.fromkeys((*pairs.samples, *people.gallery, *people.queries)))
        images = options.data / "data" / group
        embedded = embed_named(
            backbone, images, samples, lists.read_so_far, _tell, what=f"RFW's group {group}", aligned=options.aligned
        )
        digests.append((group, embedded.dataset_sha256))
        result = lfw.evaluate(pairs, embedded.samples, embedded.embeddings, failed=embedded.failed)
        results[group] = result
        groups[group] = {
            **_folds(result.system),
            "accuracy_algorithm_level": result.algorithm.mean,
            "fte": len(embedded.failed),
            **_thresholds(result.system),
            "search": _search(_people_search(people, embedded)) if people.queries else None,
        }
    by_group = {name: result.scores.comparisons(system_level=True) for name, result in results.items()}
    between = rfw.group_accuracy(results)
    pooled = _curve(
        Comparisons(
            np.concatenate([each.mated for each in by_group.values()]),
            np.concatenate([each.non_mated for each in by_group.values()]),
        )
    )
    for point in pooled["points"]:
        if "threshold" in point:
            rates = rates_by_group(by_group, point["threshold"])
            point["groups"] = {name: {"fmr": at.fmr, "fnmr": at.fnmr} for name, at in rates.items()}
    return {
        **origin((rfw.PROTOCOL, rfw.VERSION), "RFW", dataset_digest(digests), model),
        "accuracy_algorithm_level": between.mean,
        "std_over_groups": between.std_over_groups,
        "skewed_error_ratio": _or_none(lambda: between.skewed_error_ratio),
        **{name: sum(group[name] for group in groups.values()) for name in ("mated", "non_mated", "fte")},
        "groups": groups,
        **pooled,
    }


def _people_search(people: rfw.QueryGallery, embedded: EmbeddedSamples) -> SearchResult:
    """Return the search of a group's queries; one without a face, or whose mates have none, is missed."""
    row = {sample: i for i, sample in enumerate(embedded.samples)}
    gallery = tuple(sample for sample in people.gallery if sample in row)
    enrolled = {sample.name for sample in gallery}
    queries = tuple(sample for sample in people.queries if sample in row and sample.name in enrolled)
    found = rfw.QueryGallery(queries, gallery).rank_1(
        *(embedded.embeddings[[row[sample] for sample in side]] for side in (queries, gallery))
    )
    return replace(found, num_failed_mated=len(people.queries) - len(queries))


# Templates and distractors: IJB-B, IJB-C and MegaFace.


def _ijb(model: Model, options: Options, *, release: str, galleries: tuple[str, str]) -> Record:
    lists = Lists(options.data / "meta")
    names = [f"{release}_{name}" for name in ("face_tid_mid.txt", "template_pair_label.txt", "name_5pts_score.txt")]
    table = ijb.parse_face_media(lists.read(names[0]), names[0])
    pairs = ijb.parse_template_pairs(lists.read(names[1]), names[1])
    landmarks = _landmarks_of(ijb.parse_landmarks(lists.read(names[2]), names[2]), names[2])
    subjects = _subjects(lists, [f"{release}_1N_{name}.csv" for name in (*galleries, "probe_mixed")])
    for side in (pairs.first, pairs.second, *(each.template_ids for each in subjects)):
        if len(unknown := np.setdiff1d(side, table.template_ids)):
            raise CorruptDataError(f"{names[0]} has no image of template {unknown[0]}; fetch the lists again")
    images = tuple(dict.fromkeys(table.images))
    if lacking := [image for image in images if image not in landmarks]:
        raise CorruptDataError(f"{names[2]} lacks {len(lacking)} images, first {lacking[0]}; fetch the lists again")
    listed = embed_listed(
        backbone_of(model),
        options.data / "loose_crop",
        images,
        lists.read_so_far,
        _tell,
        what=f"IJB-{release[-1].upper()}",
        landmarks=np.stack([landmarks[image][0] for image in images]),
    )
    rows = listed.rows
    kept = np.array([image in rows for image in table.images])
    templates = pool_templates(
        listed.of(image for image in table.images if image in rows),
        table.template_ids[kept],
        table.media_ids[kept],
        detector_scores=[landmarks[image][1] for image in table.images if image in rows],
    )
    failed = np.setdiff1d(table.template_ids, templates.ids)
    whole = ~np.isin(pairs.first, failed) & ~np.isin(pairs.second, failed)
    found = ijb.TemplatePairs(pairs.first[whole], pairs.second[whole], pairs.mated[whole]).score(templates)
    lost = pairs.mated[~whole]
    comparisons = Comparisons(
        np.append(found.mated, np.full(int(lost.sum()), lfw.FAILED_SCORE)),
        np.append(found.non_mated, np.full(int((~lost).sum()), lfw.FAILED_SCORE)),
    )
    searches = None
    if subjects:
        searches = ijb.search_galleries(templates, (subjects[0], subjects[1]), subjects[2], failed=failed.tolist())
    return {
        **origin((ijb.PROTOCOL, ijb.VERSION), f"IJB-{release[-1].upper()}", listed.dataset_sha256, model),
        "pooling": {"keep_norm": True, "detector_scores": True},
        "templates": len(templates.ids) + len(failed),
        "failed_templates": len(failed),
        **_images(listed),
        "mated": comparisons.num_mated,
        "non_mated": comparisons.num_non_mated,
        "failed_comparisons": len(lost),
        **_curve(comparisons),
        "search": None if searches is None else _two_searches(searches),
    }


def _landmarks_of(found: ijb.Landmarks, name: str) -> dict[str, tuple[Any, float]]:
    """Return each image's points and detector score; raises CorruptDataError where a list has two of one image."""
    of = dict[str, tuple[Any, float]]()
    for image, points, score in zip(found.images, found.points, found.detector_scores.tolist(), strict=True):
        before = of.setdefault(image, (points, score))
        if before[1] != score or not np.array_equal(before[0], points):
            raise CorruptDataError(f"{name} has other points of {image} on a later line; fetch the list again")
    return of


def _subjects(lists: Lists, names: Sequence[str]) -> list[ijb.Subjects]:
    """Return both galleries and the probes of the 1:N test, or nothing where a folder has none of these lists."""
    if not any(lists.has(name) for name in names):
        return []
    return [ijb.parse_subjects(lists.read(name), name) for name in names]


def _two_searches(found: ijb.TwoGalleries) -> Record:
    points = []
    for target in TARGET_FPIRS:
        try:
            mean, apart = found.tpir(target)
        except UndefinedMetricError as error:
            points.append({"target_fpir": target, "not_measurable": error.message})
        else:
            galleries = [{**dataclasses.asdict(each), "tpir": each.tpir, "fpir": each.fpir} for each in apart]
            points.append({"target_fpir": target, "tpir": mean, "galleries": galleries})
    return {
        "mated": sum(result.num_mated for result in found.results),
        "non_mated": sum(result.num_non_mated for result in found.results),
        **{f"rank_{rank}": _or_none(partial(found.rank_rate, rank)) for rank in RANKS},
        "points": points,
    }


def _megaface(model: Model, options: Options) -> Record:
    lists = Lists(options.data)
    probes, distractors = "facescrub_features_list.json", _distractor_list(options)
    challenge = megaface.parse_challenge(lists.read(probes), lists.read(distractors), probes, distractors)
    if options.refined:
        noises = [
            megaface.parse_noise(lists.read(name), name) for name in ("facescrub_noises.txt", "megaface_noises.txt")
        ]
        challenge = challenge.refined(*noises)
    images = [f"facescrub_images/{path}" for path in challenge.probes]
    images += [f"megaface_images/{path}" for path in challenge.distractors]
    listed = embed_listed(
        backbone_of(model), options.data, images, lists.read_so_far, _tell, what="MegaFace", aligned=options.aligned
    )
    rows = listed.rows
    shown = [i for i, path in enumerate(challenge.probes) if f"facescrub_images/{path}" in rows]
    others = tuple(path for path in challenge.distractors if f"megaface_images/{path}" in rows)
    kept = replace(
        challenge,
        probes=tuple(challenge.probes[i] for i in shown),
        people=tuple(challenge.people[i] for i in shown),
        distractors=others,
    )
    result = kept.evaluate(
        listed.of(f"facescrub_images/{path}" for path in kept.probes),
        listed.of(f"megaface_images/{path}" for path in kept.distractors),
    )
    num_pairs = sum(count * (count - 1) for count in Counter(challenge.people).values())
    curve = det_curve(result.histogram)
    return {
        **origin((megaface.PROTOCOL, megaface.VERSION), "MegaFace", listed.dataset_sha256, model),
        "variant": result.variant,
        "probes": len(challenge.probes),
        "distractors": len(challenge.distractors),
        **_images(listed),
        "rank_1": result.num_hits / num_pairs,
        "rank_1_algorithm_level": result.rank_1,
        "searches": num_pairs,
        "failed_searches": num_pairs - result.num_pairs,
        "mated": curve.num_mated,
        "non_mated": curve.num_non_mated,
        "points": operating_points(curve),
    }


def _distractor_list(options: Options) -> str:
    """Return the name of the list of so many distractors, or of the only one that there is."""
    if options.distractors is not None:
        return f"megaface_features_list.json_{options.distractors}_1"
    found = sorted(path.name for path in options.data.glob("megaface_features_list.json*"))
    if len(found) > 1:
        raise ConfigError(f"there are {len(found)} lists of distractors ({', '.join(found)}); say --distractors N")
    return found[0] if found else "megaface_features_list.json"


# Any folder of people.


def _folder(model: Model, options: Options) -> Record:
    """Return the record of all pairs of name/*.jpg, or of so many mated and non-mated ones as `pairs` says.

    Those are chosen by `seed`, each person giving a mated pair before any gives two; pictures in none are not read.
    """
    if options.pairs is None:
        if options.seed is not None:
            raise ConfigError("--seed chooses among pairs; say with --pairs how many")
        return evaluate_folder(model, options.data, aligned=options.aligned)
    seed, people = options.seed or 0, find_people(options.data)
    files = [(name, path) for name, paths in people.items() for path in paths]
    keys = [f"{name}/{path.name}" for name, path in files]
    sample = folders.sample_pairs(
        keys, [name for name, _ in files], num_mated=options.pairs, num_non_mated=options.pairs, seed=seed
    )
    used = dict[str, list[Path]]()
    for name, path in (files[i] for i in sample.used):
        used.setdefault(name, []).append(path)
    faces = read_people(used, FacePipeline(model.spec.input, None, ChoiceRule.CENTRE, aligned=options.aligned))
    failed = {failure.name for failure in faces.failures}
    rows = np.array([i for i in sample.used if keys[i] not in failed])
    embeddings = np.zeros((len(files), model.spec.input.dim), np.float32)
    embeddings[rows] = load_runtime(model.spec, model.layout).embed(model.theta, faces.crops)
    whole = np.isin(sample.first, rows) & np.isin(sample.second, rows)
    fields = ("first", "second", "mated", "subjects")
    comparisons = replace(sample, **{name: getattr(sample, name)[whole] for name in fields}).score(embeddings)
    return {
        **origin((folders.PROTOCOL, folders.VERSION), options.data.resolve().name, digest(used), model),
        "seed": seed,
        "images": len(sample.used),
        "fte": len(failed),
        "mated": comparisons.num_mated,
        "non_mated": comparisons.num_non_mated,
        "failed_comparisons": int((~whole).sum()),
        **_curve(comparisons),
    }


# Parts of records.


def _folds(folds: FoldAccuracy) -> Record:
    return {
        "accuracy": folds.mean,
        "std": folds.std_population,
        "standard_error": folds.standard_error,
        "mated": folds.num_mated,
        "non_mated": folds.num_non_mated,
    }


def _thresholds(folds: FoldAccuracy) -> Record:
    """Return the cosine that each fold's pairs were accepted above: its distance threshold d is 2 - 2 cosine."""
    return {"fold_thresholds": [1.0 - threshold / 2.0 for threshold in folds.thresholds]}


def _beside(result: lfw.LfwResult) -> Record:
    """Return what stands beside a pair list's accuracy: that of pairs with templates, thresholds, pooled rates."""
    return {
        "images": result.num_samples,
        "accuracy_algorithm_level": result.algorithm.mean,
        **_thresholds(result.system),
        **_curve(result.scores.comparisons(system_level=True)),
    }


def _curve(comparisons: Comparisons) -> Record:
    curve = det_curve(comparisons)
    return {"eer": equal_error_rate(curve).value, "points": operating_points(curve)}


def _images(listed: Listed) -> Record:
    failed = listed.acquired.failed
    return {"images": len(listed.names), "fte": len(failed), "failures": dict(Counter(failed.values()))}


def _search(result: SearchResult) -> Record:
    rates = cmc(result, max(RANKS))
    return {
        "mated": result.num_mated,
        "identities": result.num_identities,
        **{f"rank_{rank}": float(rates[rank - 1]) for rank in RANKS},
    }


def _or_none(figure: Callable[[], float]) -> float | None:
    """Return a figure, or nothing where the scores do not support it."""
    try:
        return figure()
    except UndefinedMetricError:
        return None


def _tell(text: str) -> None:
    cli.ERR.print(text, highlight=False)


PROTOCOLS: Final[Mapping[str, tuple[Callable[[Model, Options], Record], frozenset[str]]]] = {
    "lfw": (_whole_lfw, frozenset()),
    "bin": (_bin, frozenset()),
    "ijbb": (partial(_ijb, release="ijbb", galleries=("gallery_S1", "gallery_S2")), frozenset()),
    "ijbc": (partial(_ijb, release="ijbc", galleries=("gallery_G1", "gallery_G2")), frozenset()),
    "megaface": (_megaface, frozenset({"aligned", "refined", "distractors"})),
    "rfw": (_rfw, frozenset({"aligned"})),
    "sllfw": (_sllfw, frozenset()),
    "folder": (_folder, frozenset({"aligned", "pairs", "seed"})),
}
"""Every protocol by its name on the command line, and the options that it has."""


# For people.


def _draw(record: Record) -> None:
    table = Table("figure", "value")
    for name, value in _rows(record):
        table.add_row(name, value)
    cli.OUT.print(table)
    rates = Table("FMR wanted", "threshold", "FMR", "FNMR")
    for point in record["points"]:
        target = f"{point['target_fmr']:g}"
        if "threshold" in point:
            rates.add_row(target, f"{point['threshold']:.4f}", f"{point['fmr']:.3%}", f"{point['fnmr']:.2%}")
        else:
            rates.add_row(target, "", "", point["not_measurable"])
    cli.OUT.print(rates)


def _rows(record: Record, under: str = "") -> Iterator[tuple[str, str]]:
    """Yield the record's figures, a table within it under its own name; lists stand in the JSON form alone."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{under}{name} ")
        elif value is not None and not isinstance(value, list):
            yield f"{under}{name}".replace("_", " "), f"{value:.5g}" if isinstance(value, float) else str(value)
