"""`python -m simulation.synthetic`: draw a set of faces of people who do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from device_sdk.faces import load_detector
from mien.shell.cli import ERR, OUT, emit, run
from mien.shell.doing import unseen
from simulation.synthetic.generate import Order, generate
from simulation.synthetic.model import FaceModel
from simulation.synthetic.render import Image

APP = typer.Typer(add_completion=False)


@APP.command()
def draw_faces(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and their manifest.")],
    identities: Annotated[int, typer.Option(help="How many people; 1/6 phones, 1/3 public, the rest test.")] = 60,
    images: Annotated[int, typer.Option(help="Pictures of each person.")] = 10,
    seed: Annotated[int, typer.Option(help="Equal seeds draw equal people, poses and lights.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Draw synthetic faces, each one checked to be found by the face detector.

    Needs the extra "synthetic" of mien; the first start parses the face model for about a minute and caches 1.5 GB.

    Example: python -m simulation.synthetic --identities 60 --images 10 --seed 7 --out faces
    """
    order = Order(identities=identities, images=images, seed=seed)
    detector = load_detector()

    def shows_one_face(image: Image) -> bool:
        return len(detector.detect(image)) == 1

    with unseen(), Progress(console=ERR, transient=True) as progress:
        task = progress.add_task("loading the face model", total=identities)
        source = FaceModel()
        manifest = generate(
            source,
            order,
            out,
            shows_one_face,
            on_identity=lambda name: progress.update(task, description=name, advance=1),
        )
    redrawn = sum(attempt > 0 for attempt in manifest.attempt_of_file.values())
    count = len(manifest.sha256_of_file)
    sentence = f"{count} pictures of {identities} people in {out}; {redrawn} drawn again until one face was found"
    emit(
        {"images": count, "redrawn": redrawn, "dataset_sha256": manifest.dataset_sha256},
        as_json=as_json,
        human=lambda: OUT.print(sentence, markup=False),
    )


def main() -> None:
    """Run the command line."""
    run(APP)
