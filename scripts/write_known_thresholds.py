"""Measure a public model on a folder of real people and write what thresholds follow, with the scores, as numbers.

What mien/models/thresholds/ holds was measured on the pictures of Labeled Faces in the Wild (deep-funneled) that View 2
and the people with eight or more have, at most 30 of a person: `lfw/images` in the folder that MIEN_DATA names.

    python -m scripts.write_known_thresholds FILE.onnx --data $MIEN_DATA/lfw/images --out mien/models/thresholds/a.json
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.people.enroll import DEFAULT_MIN_IMAGES
from device_sdk.runtimes import load_runtime
from mien.backbones.importers import import_model
from mien.evaluation import ScoreHistogram, all_pairs
from mien.evaluation.scores import Comparisons
from mien.evaluation.tail import enrolled_against_strangers
from mien.layout import model_id
from mien.models.known_models import recognise
from mien.models.known_thresholds import KnownScores
from mien.records import to_mapping
from mien.rounds.thresholds import thresholds_of
from mien.shell import provenance
from simulation.faces.datasets import digest, find_people, read_people
from simulation.faces.folder_protocol import ENROLLED, folder_record
from simulation.faces.models import Model

BINS: Final = 400
DATASET: Final = "LFW"
TERMS: Final = "research, non-commercial use; counts of scores only, no picture and no embedding of it is shipped"


def scores_of(file: Path, data: Path) -> KnownScores:
    """Return what a model file's scores are on a folder name/*.jpg, and the thresholds that follow."""
    known = recognise(file.read_bytes())
    imported = import_model(file.read_bytes(), file.name)
    own_id = model_id(imported.layout.sha256, imported.theta)
    model = Model(imported.spec, imported.layout, imported.theta)
    people = find_people(data)
    faces = read_people(people, FacePipeline(model.spec.input, None, ChoiceRule.CENTRE))
    embeddings = load_runtime(model.spec, model.layout).embed(model.theta, faces.crops)
    comparisons = all_pairs(embeddings, faces.labels)
    sha256 = digest(people)
    record = folder_record(model, faces, embeddings, comparisons, dataset=DATASET, dataset_sha256=sha256)
    pairs = ScoreHistogram.of(comparisons, BINS)
    strangers, _ = enrolled_against_strangers(embeddings, faces.labels, at_least=DEFAULT_MIN_IMAGES, at_most=ENROLLED)
    among = ScoreHistogram.of(Comparisons(strangers[:0], strangers), BINS)
    return KnownScores(
        title=model.spec.backbone if known is None else known.title,
        model_id=own_id,
        dataset=DATASET,
        dataset_sha256=sha256,
        dataset_terms=TERMS,
        identities=len(faces.names),
        images=record["images"],
        fte=record["fte"],
        mated=tuple(pairs.mated.tolist()),
        non_mated=tuple(pairs.non_mated.tolist()),
        strangers=tuple(among.non_mated.tolist()),
        thresholds=tuple(thresholds_of(record, datetime.now(UTC))),
        commit=provenance.commit(),
        command=f"python -m scripts.write_known_thresholds {file.name} --data lfw/images",
    )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a model file of mien.models.known_models")
    parser.add_argument("--data", type=Path, required=True, help="folder name/*.jpg of real people")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    args = parser.parse_args()
    lines = [
        f' "{name}": {json.dumps(value)}' for name, value in sorted(to_mapping(scores_of(args.file, args.data)).items())
    ]
    args.out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
