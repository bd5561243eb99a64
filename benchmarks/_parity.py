"""How far each engine's update is from torch's: by network, part, objective and number of steps, with a table of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import _common
from benchmarks._device import LOCAL, Case, Engine, measure
from device_sdk.runtimes.manifest import GraphEngine
from mien.layout import Vector

STEPS: Final = (1, 5, 20)
PARITY: Final = replace(LOCAL, lr=0.003)
"""At a rate of 0.01 some objectives turn a difference of one rounding, where it takes a PReLU over its kink, into per
cents within 20 steps, as torch alone also shows; at this rate what is left shows the engines' arithmetic."""
_WORDS: Final[Mapping[GraphEngine, str]] = {"onnxruntime": "ONNX Runtime", "executorch": "ExecuTorch"}


def parity(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Return a row for each objective and number of steps: the updates' relative L2 distances to torch's."""
    return [row for case in cases for row in _rows(case)]


def _rows(case: Case) -> Iterator[dict[str, Any]]:
    values: dict[str, tuple[NDArray[Any], ...]] = {}
    engines: tuple[Engine, ...] = ("torch", *case.engines)
    for engine in engines:
        _common.progress(f"{case.model}, {case.word}: {engine}")
        job = replace(case.job(), engine=engine, local=PARITY, steps=STEPS, is_timed=False)
        values[engine] = measure(job).values
    start = case.part.gather(case.theta)
    number = 0
    for objective in case.objectives:
        for steps in STEPS:
            yield {
                "model": case.model,
                "part": case.word,
                "trained": case.part.size,
                "objective": objective,
                "steps": steps,
                "difference": {
                    engine: float(f"{relative(values[engine][number], values['torch'][number], start):.2g}")
                    for engine in case.engines
                },
            }
            number += 1


def relative(found: NDArray[Any], expected: NDArray[Any], start: Vector) -> float:
    """Return the L2 distance of two updates over the length of the expected one."""
    update = expected.astype(np.float64) - start
    return float(np.linalg.norm(found - expected) / np.linalg.norm(update))


def markdown(result: Mapping[str, Any]) -> str:
    """Return the rows as a table for documents: a line for each network, part and objective."""
    grouped: dict[tuple[str, str, int, str], dict[int, Mapping[str, float]]] = {}
    for row in result["rows"]:
        key = (row["model"], row["part"], row["trained"], row["objective"])
        by_steps = grouped.setdefault(key, {})
        by_steps[row["steps"]] = {**by_steps.get(row["steps"], {}), **row["difference"]}
    engines = list(_WORDS)
    head = [f"{_WORDS[engine]}, {steps}" for engine in engines for steps in STEPS]
    lines = [
        f"`{result['command']}`, {PARITY.batch_size} images a batch of {result['num_crops']} faces, rate "
        f"{PARITY.lr}, momentum {PARITY.momentum}; {result['machine']}. Relative L2 distance of the update to torch's "
        "after so many steps.",
        "",
        "| network | trained | objective | " + " | ".join(head) + " |",
        "|" + "---|" * (3 + len(head)),
    ]
    for (model, part, trained, objective), by_steps in grouped.items():
        cells = [_stated(by_steps[steps].get(engine)) for engine in engines for steps in STEPS]
        lines.append(f"| {model} | {part}, {trained:,} | {objective} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _stated(difference: float | None) -> str:
    return "" if difference is None else f"{difference:.1e}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that belong to the table."""
    parser.add_argument("--parity", action="store_true", help="the updates' distances to torch's alone, of everything")
    parser.add_argument("--markdown", metavar="FILE", help="with --parity: write its table there too")
