"""Work that needs faces, or torch, done by a child process: this program imports neither.

The child needs ONNX Runtime and what finds faces; torch it loads only for what has no graphs to run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mien.errors import TABLE, ConfigError, CorruptDataError, MienError, MissingDependencyError, UnreachableError
from mien.evaluation.gates import Evidence
from mien.records import from_mapping
from mien.shell import exits
from mien.shell.doing import doing, relayed

_MODULE: Final = "simulation.program.worker"
_INTERRUPTED: Final = (exits.EXIT_INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)
_BY_EXIT_CODE: Final = {row.exit_code: cls for cls, row in TABLE.items()}


def import_model(
    source: Path,
    out: Path,
    *,
    adapter: bool = False,
    gate: Path | None = None,
    graphs: bool = False,
    embed_only: bool = False,
    int8_faces: Path | None = None,
    aligned: bool = False,
) -> dict[str, Any]:
    """Have a public model file unpacked: `out` gets model.json (canonical) and theta.f32 (little-endian float32).

    `adapter` puts a linear adapter behind it, of which nothing else is trained by default; `gate` (a folder of faces of
    the model's own population, of crops where `aligned`) one that is for another population alone. With `graphs` it
    gets the graphs of phones without torch, with `embed_only` those alone that embed, with `int8_faces` (a folder, of
    crops where `aligned`) an int8 variant; `source` may then be a model folder, too. Returns what was made.
    """
    chosen = {"adapter": adapter, "graphs": graphs, "embed-only": embed_only, "aligned": aligned}
    flags = [f"--{name}" for name, is_on in chosen.items() if is_on]
    folders = {"--gate": gate, "--int8-faces": int8_faces}
    faces = [word for name, folder in folders.items() if folder is not None for word in (name, str(folder))]
    made = _object(_run(["import", str(source), "--out", str(out), *flags, *faces]))
    for name in ("model.json", "theta.f32"):
        if not (out / name).is_file():
            raise CorruptDataError(f"importing {source} gave no {name}; the worker is of another version")
    return made


def first_model(out: Path, faces: Path) -> dict[str, Any]:
    """Have the model of a fleet's first release made in `out`, and the pictures of the public people in `faces`.

    It is the packaged recogniser with an adapter, its known thresholds, the graphs that embed, and public faces.
    """
    return _object(_run(["first", "--out", str(out), "--faces", str(faces)]))


def evaluate(
    model: Path,
    data: Path,
    protocol: str,
    *,
    aligned: bool = False,
    graphs: Path | None = None,
    groups: Path | None = None,
    worst_group: bool = False,
) -> dict[str, Any]:
    """Return the record of a protocol on a folder of faces, for a model folder as `model export` writes it.

    With the graphs in `graphs` (protocol `folder`) the worker loads no torch. `groups` says who is in which group (a
    CSV, or `data` again), `worst_group` that operating points are those of the worst one.
    """
    paths = {"--graphs": graphs, "--groups": groups}
    flags = [f"--{name}" for name, is_on in {"aligned": aligned, "worst-group": worst_group}.items() if is_on]
    flags += ["--json", *(word for name, path in paths.items() if path for word in (name, str(path)))]
    return _object(_run(["evaluate", "--model", str(model), "--data", str(data), "--protocol", protocol, *flags]))


async def check(
    reference: Path, candidate: Path, gates: Path, sets: Mapping[str, str], crops: Mapping[str, str], *, limit_s: float
) -> tuple[Evidence, list[dict[str, Any]]]:
    """Return the gates' evidence on a candidate, and the records of its measurements; models are folders.

    `gates` is a file of JSON; `sets` and `crops` are folders by the names of evaluation sets. The child ends with the
    caller, and after `limit_s` (UnreachableError).
    """
    _require()
    named = [*_flags("--set", sets), *_flags("--crops", crops)]
    paths = ["--reference", str(reference), "--candidate", str(candidate), "--gates", str(gates)]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _MODULE, "check", *paths, *named, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            printed, told = await child.communicate()
    except TimeoutError:
        raise UnreachableError(f"the measurement took more than {limit_s:.0f} s (gates_limit_s)") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        raise _error(child.returncode or 1, told.decode(errors="replace"))
    answer = _object(printed.decode())
    try:
        return from_mapping(Evidence, answer["evidence"]), list(answer["records"])
    except (KeyError, TypeError, ConfigError) as error:
        raise CorruptDataError("the gates gave no evidence; the worker is of another version") from error


def _flags(flag: str, folders: Mapping[str, str]) -> list[str]:
    return [part for name, folder in folders.items() for part in (flag, f"{name}={folder}")]


def _object(text: str) -> dict[str, Any]:
    """Return the one JSON object that the worker prints; a number that is not finite is none."""
    try:
        record = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except ValueError as error:
        raise CorruptDataError("the evaluation gave no record; the worker is of another version") from error
    if not isinstance(record, dict):
        raise CorruptDataError("the evaluation gave no record; the worker is of another version")
    return record


def _finite(text: str) -> float:
    """Return a number of JSON; Python's parser would let NaN and infinity through, 1e999 included."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _require() -> None:
    """Raise MissingDependencyError unless the worker can start here; nothing of it is imported.

    What it lacks of torch it says itself, for it may do without.
    """
    for module, extra in (("simulation", "simulation"), ("cv2", "device"), ("onnxruntime", "device")):
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(
                f"this needs {module}, which is not installed; run: pip install '.[{extra}]' in Mien's folder"
            )


def _run(arguments: Sequence[str]) -> str:
    """Return the worker's output; what it does is shown as if we did it, its error becomes ours."""
    _require()
    command = [sys.executable, "-m", _MODULE, *arguments]
    with (
        doing("Starting a process of its own for the model") as step,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,  # of a pipe it would wait for us to read
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True) as child,
    ):
        assert child.stderr is not None
        last = ""
        for line in child.stderr:  # the last line may be the error, which is ours to tell
            if shown := relayed(line):
                step.follow(shown)
                continue
            sys.stderr.write(last)
            last = line
        child.wait()
        out.seek(0)
        printed = out.read()
    _check(child.returncode, last)
    sys.stderr.write(last)
    return printed


def _check(exit_code: int, told: str) -> None:
    """Raise unless the worker ended well: its error, or KeyboardInterrupt where Ctrl-C, meant for us both, did it."""
    if exit_code in _INTERRUPTED:
        raise KeyboardInterrupt
    if exit_code != 0:
        raise _error(exit_code, told)


def _error(exit_code: int, told: str) -> MienError:
    """Return the worker's error: its class by exit code, its sentence from the last line of its stderr.

    What it was doing is no error: the last that a child says which is killed.
    """
    last_line = next((line for line in reversed(told.strip().splitlines()) if not relayed(line)), "")
    try:
        message = str(json.loads(last_line)["message"])
    except (ValueError, KeyError, TypeError):
        message = last_line.strip().partition("): ")[2] or last_line.strip() or "it said nothing"
    cls = _BY_EXIT_CODE.get(exit_code)
    if cls is None:
        killed = exit_code == -signal.SIGKILL
        hint = "; a system short of memory ends programs so: free some, then run again" if killed else ""
        return CorruptDataError(f"the worker failed (exit code {exit_code}): {message[:300]}{hint}")
    return cls(message[:600])
