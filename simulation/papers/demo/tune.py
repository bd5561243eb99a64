"""The table behind the demo's defaults: `python -m simulation.papers.demo.tune --help`.

Each variant is one of the demo's two tasks with a few fields changed. It is trained by the reference engine on the
faces that the repository ships, ten phones of one person each, and measured twice: EER on the 30 test people, whom
nobody trained on, and the cost on the released model's own population, LFW View 2 (where MIEN_DATA names a folder with
it; research, non-commercial use). One JSON line a run goes to `--out`; runs that are in it are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.models.packaged import sface_path
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones.importers import import_model, with_adapter
from mien.errors import InputError
from mien.evaluation import Comparisons, DetCurve, all_pairs, bootstrap_by_identity, det_curve, equal_error_rate
from mien.evaluation.protocols import lfw
from mien.layout import ParameterLayout, Vector
from mien.methods.base import Crops, Runtime, ServerState
from mien.specs import ModelSpec, TaskSpec, from_mapping
from simulation.demo.people import PROBES
from simulation.engines.engine import Cohort, PublicFaces, RoundRecord, run_task
from simulation.engines.runtimes import PublicOnly
from simulation.faces.datasets import LabelledCrops, People, read_people
from simulation.faces.listed import read_pairs
from simulation.runs.grid import changed
from simulation.synthetic import committed_faces

HERE: Final = Path(__file__).resolve().parent
REPLICATES: Final = 300
CACHE_BYTES: Final = 4 * 2**30


@dataclass(frozen=True)
class Variant:
    """A task's file, what is changed in it by dotted names, and what is taken away from the phones."""

    task: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    phones: bool = True

    def spec(self, seed: int) -> TaskSpec:
        """Return the task of this variant."""
        values: dict[str, Any] = tomllib.loads((HERE / f"{self.task}.toml").read_text(encoding="utf-8"))
        return from_mapping(TaskSpec, changed(values, {**self.changes, "seed": seed}))


VARIANTS: Final[Mapping[str, Variant]] = {
    "fedface": Variant("fedface"),
    "public_only": Variant("fedface", phones=False),
    "twelve_rounds": Variant("fedface", {"rounds": 12}),
    "larger_step": Variant("fedface", {"local.lr": 0.2}),
    "sharper_softmax": Variant("fedface", {"options.public.scale": 16.0}),
    "last_block": Variant(
        "fedface", {"trainable": ["block13.*"], "rounds": 12, "local.lr": 0.4, "options.public.scale": 4.0}
    ),
    "fedface_exact": Variant("fedface_exact"),
    "exact_paper": Variant("fedface_exact", {"options.preset": "paper"}),
    "exact_released_code": Variant("fedface_exact", {"options.preset": "released_code"}),
    "fedavg": Variant("fedface_exact", {"method": "fedavg", "options": {}, "privacy.reveals": []}),
}


@dataclass(frozen=True)
class LfwCrops:
    """LFW View 2 as crops, in the order of `samples`."""

    pairs: lfw.PairList
    samples: list[lfw.LfwSample]
    crops: Crops = field(repr=False)
    failed: list[lfw.LfwSample]

    @classmethod
    def read(cls, folder: Path, pipeline: FacePipeline) -> LfwCrops:
        """Return the images that the protocol needs; those without a face count as errors."""
        pairs = read_pairs(folder)
        samples, crops, failed = [], [], []
        for sample in pairs.samples:
            try:
                crops.append(pipeline.acquire_file(folder / "images" / sample.path).crop)
                samples.append(sample)
            except InputError:
                failed.append(sample)
        return cls(pairs, samples, np.stack(crops), failed)

    def measure(self, runtime: TorchRuntime, theta: Vector) -> dict[str, float]:
        """Return ten-fold accuracy and EER over the pairs, of single embeddings: a phone embeds no mirrored image."""
        embeddings = runtime.embed(theta, self.crops)
        result = lfw.evaluate(self.pairs, self.samples, embeddings, failed=self.failed)
        scores = lfw.score_pairs(self.pairs, self.samples, embeddings, failed=self.failed)
        return {
            "lfw_accuracy": result.system.mean,
            "lfw_accuracy_se": result.system.standard_error,
            "lfw_eer": equal_error_rate(det_curve(scores.comparisons())).value,
        }


@dataclass(frozen=True)
class Setting:
    """Parts shared by all runs: the released model, the phones' and the public people's crops, the tests; one runtime.

    The runtime remembers every image's features, as long as variants follow each other that train the same blocks.
    """

    spec: ModelSpec
    layout: ParameterLayout
    theta: Vector = field(repr=False)
    cohort: Cohort = field(repr=False)
    test: LabelledCrops = field(repr=False)
    lfw: LfwCrops | None = field(repr=False)
    runtime: TorchRuntime = field(repr=False)

    def comparisons(self, theta: Vector) -> Comparisons:
        """Return all comparisons among the test people's images."""
        return all_pairs(self.runtime.embed(theta, self.test.crops), self.test.labels, keep_subjects=True)

    def measure(self, theta: Vector) -> dict[str, Any]:
        """Return EER on the test people with its interval over identities, and the cost on LFW where it is at hand."""
        comparisons = self.comparisons(theta)
        interval = bootstrap_by_identity(comparisons, _eer, rng=np.random.default_rng(0), num_replicates=REPLICATES)
        return {
            "eer": _eer(det_curve(comparisons)),
            "eer_95": [interval.low, interval.high],
            "mated": comparisons.num_mated,
            "non_mated": comparisons.num_non_mated,
            **(self.lfw.measure(self.runtime, theta) if self.lfw else {}),
        }


def _eer(curve: DetCurve) -> float:
    return equal_error_rate(curve).value


def main() -> None:
    """Run the variants that were asked for and print their table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("variants", nargs="*", default=list(VARIANTS), help=f"of: {', '.join(VARIANTS)}")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each variant")
    parser.add_argument("--every", type=int, default=0, metavar="N", help="also measure EER after every N rounds")
    parser.add_argument("--out", type=Path, default=Path("out/tune.jsonl"), help="records, one JSON line a run")
    args = parser.parse_args()
    if unknown := sorted(set(args.variants) - set(VARIANTS)):
        parser.error(f"unknown variants {unknown}; known: {', '.join(VARIANTS)}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [("released", 0), *((name, seed) for name in args.variants for seed in range(args.seeds))]
    done = {(r["variant"], r["seed"]) for r in _records(args.out)}
    if any(run not in done for run in wanted):
        setting = read_setting()
        for name, seed in wanted:
            if (name, seed) not in done:
                record = released(setting) if name == "released" else run(setting, name, seed, args.every)
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                sys.stderr.write(f"{name} seed {seed}: EER {record['eer']:.2%}, {record['train_cpu_s']:.0f} CPU s\n")
    sys.stdout.write(table(list(_records(args.out)), args.variants))


def read_setting() -> Setting:
    """Return the demo's faces and model; LFW where MIEN_DATA names a folder that holds it."""
    imported = with_adapter(import_model(sface_path().read_bytes(), sface_path().name))
    pipeline = FacePipeline(imported.spec.input, policy=None, choice=ChoiceRule.CENTRE)
    phones: People = {name: files[:-PROBES] for name, files in committed_faces("phones").items()}
    owned, public = read_people(phones, pipeline), read_people(committed_faces("public"), pipeline)
    data = os.environ.get("MIEN_DATA")
    return Setting(
        imported.spec,
        imported.layout,
        imported.theta,
        Cohort({name: owned.of(name) for name in phones}, public=PublicFaces(public.crops, public.labels)),
        read_people(committed_faces("test"), pipeline),
        LfwCrops.read(Path(data) / "lfw", pipeline) if data else None,
        TorchRuntime(imported.spec, imported.layout, cache_bytes=CACHE_BYTES),
    )


def released(setting: Setting) -> dict[str, Any]:
    """Return the record of the model before any training."""
    return {"variant": "released", "seed": 0, "train_cpu_s": 0.0, **setting.measure(setting.theta)}


def run(setting: Setting, name: str, seed: int, every: int) -> dict[str, Any]:
    """Return the record of one variant under one seed, with the EER after every `every` rounds."""
    variant, trace, measuring = VARIANTS[name], list[dict[str, Any]](), 0.0
    task = variant.spec(seed)
    part = setting.layout.part(task.trainable or setting.spec.trainable)
    runtime: Runtime = setting.runtime if variant.phones else PublicOnly(setting.runtime)

    def note(state: ServerState, record: RoundRecord) -> None:
        nonlocal measuring
        if every and record.round % every == 0:
            before = time.process_time()
            trace.append({"round": record.round, "eer": _eer(det_curve(setting.comparisons(state.theta)))})
            measuring += time.process_time() - before

    started = time.process_time()
    result = run_task(task, part, setting.spec.input.dim, setting.theta, setting.cohort, runtime, after_round=note)
    return {
        "variant": name,
        "seed": seed,
        "rounds": task.rounds,
        "parameters": part.size,
        "train_cpu_s": time.process_time() - started - measuring,
        "loss_before": result.records[0].loss_before,
        "loss_after": result.records[-1].loss_after,
        "trace": trace,
        **setting.measure(result.state.theta),
    }


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def table(records: list[dict[str, Any]], variants: list[str]) -> str:
    """Return the records as a Markdown table, one row a variant: means over seeds, ranges in brackets."""
    lines = ["| variant | runs | EER | LFW accuracy | CPU s |", "|---|---|---|---|---|"]
    for name in ("released", *variants):
        rows = [r for r in records if r["variant"] == name]
        if rows:
            cells = [_cell([r[key] for r in rows if key in r]) for key in ("eer", "lfw_accuracy")]
            seconds = np.mean([r["train_cpu_s"] for r in rows])
            lines.append(f"| {name} | {len(rows)} | {cells[0]} | {cells[1]} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float]) -> str:
    if not values:
        return "not measured"
    return f"{np.mean(values):.2%} [{min(values):.2%}, {max(values):.2%}]"


if __name__ == "__main__":
    main()
