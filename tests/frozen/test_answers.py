"""What the programs answer with --json, and with which exit code: scripts rely on the keys, and on mistakes' codes.

`commands.txt` holds what is run, `answers.json` the keys and the kinds of values, not the values: they differ from run
to run. After a change that is meant, run `python -m tests.frozen.test_answers` and commit what it wrote.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.keys import pki
from mien.shell.keys import p256_key
from simulation.testing import free_port
from tests.frozen.make import Programs, serving
from tests.frozen.test_cli import changes
from tests.programs import run

HERE = Path(__file__).resolve().parent
ANSWERS, COMMANDS = HERE / "answers.json", HERE / "commands.txt"
REMEDY = "where this is meant: python -m tests.frozen.test_answers, and commit what it wrote with the change"

SERVED = "# While the registrar and the coordinator serve:"
SMALL_TASK = 'name = "small"\nmethod = "fedavg"\nrounds = 3\n[cohort]\nsize = 16\nmin_reports = 16\n'


def answered(line: str, names: dict[str, str]) -> dict[str, Any]:
    """Return a command's exit code, and the keys of what it printed for machines or of its error."""
    program, *arguments = shlex.split(line)
    done = run(program, *(each.format_map(names) for each in arguments if each not in ("--again", "--joined")))
    answer: dict[str, Any] = {"exit": done.code}
    if done.out.strip():
        answer["prints"] = shape(done.told)
        if "url" in done.told:
            names["invite"] = done.told["url"]
    if told := done.err.splitlines():
        with contextlib.suppress(ValueError):  # the usage, for people alone
            failed = json.loads(told[-1])
            answer["error"] = {"code": failed["error"], "keys": sorted(failed)}
    return answer


def lines_of(text: str) -> list[str]:
    """Return the commands in a text, one a line, without comments and empty lines."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def shape(value: Any) -> Any:
    """Return a value's keys, and the kinds of what is behind them."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        kinds = {json.dumps(shape(each), sort_keys=True) for each in value}
        return [json.loads(kind) for kind in sorted(kinds)]
    if value is None or isinstance(value, bool):
        return "null" if value is None else "bool"
    return "text" if isinstance(value, str) else "number"


def answers(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run every command and yield its line with its answer."""
    programs = Programs(Path(sys.executable).parent.parent, folder)
    join, admin, rounds = (f"127.0.0.1:{free_port()}" for _ in range(3))
    names = {"join": join, "admin": admin, "rounds": rounds, "T": str(folder), "tiny": str(HERE / "tiny")}
    names |= {
        letter: str(folder / name)
        for letter, name in zip("RCDEN", ["registrar", "coordinator", "phone", "other", "none"], strict=True)
    }
    for name, text in {
        "password": "correct horse battery\n",
        "other": "another horse battery\n",
        "short": "short\n",
        "wrong": 'nam = "x"\n',
        "task": SMALL_TASK,
        "experiment": EXPERIMENT,
    }.items():
        names[name] = str(folder / f"{name}.toml")
        Path(names[name]).write_text(text, encoding="utf-8")
    names["request"] = str(folder / "request.csr")
    Path(names["request"]).write_bytes(pki.create_csr(p256_key()))
    public = programs.package("simulation") / "synthetic" / "faces" / "public"
    faces = folder / "faces"
    for person in sorted(public.iterdir())[:2]:
        (faces / person.name).mkdir(parents=True)
        for picture in sorted(person.glob("*.jpg"))[:2]:
            (faces / person.name / picture.name).write_bytes(picture.read_bytes())
    names["faces"] = str(faces)
    before, _, served = COMMANDS.read_text(encoding="utf-8").partition(SERVED)
    for line in lines_of(before):
        yield line, answered(line, names)
    with (
        serving(programs, "mien-registrar", folder / "registrar", join),
        serving(programs, "mien-coordinator", folder / "coordinator", rounds),
    ):
        for line in lines_of(served):
            yield f"{line} (served)", answered(line, names)


EXPERIMENT = """
name = "frozen"
[[faces]]
kind = "shipped"
[model]
source = "new"
backbone = "mobilefacenet_folded"
[partition]
clients = 3
test = 6
[task]
method = "fedavg"
rounds = 2
trainable = ["embedding.*"]
[task.cohort]
size = 3
min_reports = 3
[task.privacy]
min_cohort = 3
"""


def written(folder: Path) -> str:
    """Return all answers as they are committed: a line each."""
    lines = [f"{json.dumps(line)}:\n  {json.dumps(answer)}" for line, answer in answers(folder)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_answer_has_the_keys_and_the_exit_code_that_it_had(tmp_path: Path) -> None:
    told = changes(ANSWERS.read_text(encoding="utf-8"), written(tmp_path))
    assert not told, f"{told}\n{REMEDY}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        ANSWERS.write_text(written(Path(made)), encoding="utf-8")
