"""Write docs/model-card-sface.md from the record beside it: the card of the default model, as `model card` writes it.

    python -m scripts.write_model_card                      # the page anew, from docs/model-card-sface.json
    python -m scripts.write_model_card --faces OUT          # the faces that were measured, out of MIEN_DATA
    python -m scripts.write_model_card --record HOME ID     # the record anew, out of a coordinator's store

The record holds counts and rates, no picture and no template. How to measure again is in docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import cv2

from coordinator.commands.models.cards import card_of
from coordinator.home.home import CoordinatorHome
from coordinator.operator.card import ModelCard, card_report
from device_sdk.faces import ChoiceRule, FacePipeline
from mien.layout import model_id
from mien.protocol.canonical import model_to_json, to_canonical_json
from mien.protocol.ids import ModelId
from mien.protocol.rounds import BlobId
from mien.rounds.records import EvaluationRecord, ModelRecord
from mien.rounds.releases import ModelState, Standing
from mien.rounds.thresholds import group_rates_of, thresholds_of
from mien.shell.pages import markdown
from mien.specs import FaceInputSpec, ModelSpec
from simulation.faces.datasets import find_people
from simulation.faces.models import sface

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
RECORD: Final = DOCS / "model-card-sface.json"
PAGE: Final = DOCS / "model-card-sface.md"
NAME: Final = "lfw-celeba-bollywood"
COMMAND: Final = f"mien-coordinator model evaluate ID --groups ./{NAME} --aligned --keep-thresholds"
SHARED: Final = "Aishwarya_Rai"
"""Is in LFW and among the film actors: one face under two names would be a false match."""


def written() -> str:
    """Return the page, from the record and from what SFace's file says."""
    return markdown(card_report(card_from(json.loads(RECORD.read_text(encoding="utf-8")))))


def card_from(kept: dict[str, Any]) -> ModelCard:
    """Return the card of the pretrained SFace with the measurement in a record."""
    model = sface()
    identity = model_id(model.layout.sha256, model.theta)
    record, made = kept["record"], EvaluationRecord(ModelId(identity), b"", kept["made_ms"], kept["made_by"])
    spec = kept_with(model.spec, record, made)
    theta = BlobId("0" * 64, 4 * model.layout.size)
    described = model_to_json(spec, model.layout)
    return ModelCard(
        model=ModelRecord(ModelId(identity), described, model.layout.sha256, theta, kept["created_ms"]),
        standing=Standing(ModelState.CANDIDATE),
        bundle=None,
        trainings=(),
        origin="",
        evaluations=(EvaluationRecord(made.model_id, to_canonical_json(record), made.made_ms, made.made_by),),
    )


def kept_with(spec: ModelSpec, record: dict[str, Any], made: EvaluationRecord) -> ModelSpec:
    """Return a description with what `--keep-thresholds` adds to it."""
    now = datetime.fromtimestamp(made.made_ms / 1000, UTC)
    return replace(spec, thresholds=tuple(thresholds_of(record, now)), groups=tuple(group_rates_of(record, now)))


def extract(home: Path, model: str) -> None:
    """Write the record out of a coordinator's store, without the paths of its machine."""
    with CoordinatorHome(home).store() as store:
        (identity,) = [each.model_id for each in store.models() if each.model_id.startswith(model)]
        card = card_of(store, identity)
    (record,) = card.records
    made = {name: record.pop(name) for name in ("made_ms", "made_by")}
    kept = {"created_ms": card.model.created_ms, **made, "record": {**record, "command": COMMAND}}
    RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def gather(data: Path, out: Path) -> None:
    """Write the faces that were measured, as group/person/pictures of aligned crops."""
    for group, folder, most in (("CelebA", "celeba112", 2), ("Bollywood", "bollywood112", 15)):
        for person, files in find_people(data / folder).items():
            (out / group / person).mkdir(parents=True)
            for file in files[:most]:
                shutil.copy(file, out / group / person)
    pipeline = FacePipeline(FaceInputSpec(), None, ChoiceRule.CENTRE)
    people = find_people(data / "lfw" / "images", min_images=2)
    people.pop(SHARED, None)
    for person in sorted(people)[:: len(people) // 300][:300]:
        (out / "LFW" / person).mkdir(parents=True)
        for file in people[person][:2]:
            crop = pipeline.acquire_file(file).crop
            cv2.imwrite(str(out / "LFW" / person / f"{file.stem}.png"), crop[..., ::-1])


def main() -> None:
    """Write the page, or one of the two things before it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faces", type=Path)
    parser.add_argument("--record", nargs=2, metavar=("HOME", "ID"))
    options = parser.parse_args()
    if options.faces is not None:
        gather(Path(os.environ["MIEN_DATA"]), options.faces / NAME)
        return
    if options.record is not None:
        extract(Path(options.record[0]), options.record[1])
    PAGE.write_text(written(), encoding="utf-8")


if __name__ == "__main__":
    main()
