"""One folder of real people for the spread-out study: CelebA, LFW and Bollywood, the domain before each name.

    python -m simulation.papers.spreadout.mix --data DATA --out FOLDER
    python -m simulation.papers.spreadout --faces FOLDER

LFW's pictures are aligned as a device aligns them and written as PNG; those of the other two are aligned already and
linked. `lfw_` are people with ten or more pictures, `lfwrest_` others with four or more. The folder holds faces of real
people (research, non-commercial use): keep it outside of any repository, and delete it afterwards.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import cv2

from device_sdk.faces import ChoiceRule, FacePipeline
from mien.errors import InputError, MienError
from mien.shell import cli
from mien.shell.files import make_folder
from simulation.faces.datasets import MIN_IMAGES, People, find_people
from simulation.faces.models import sface_with_adapter
from simulation.papers.spreadout.runs import MAX_IMAGES

PHONE_IMAGES: Final = 10
"""The fewest pictures of somebody who holds a phone."""

NUM_REST: Final = 150


def mix(data: Path, out: Path) -> int:
    """Return how many people the folder `out` now holds; people that it holds already are left as they are."""
    make_folder(out)
    lfw = find_people(data / "lfw" / "images", min_images=MIN_IMAGES)
    phones = {f"lfw_{name}": files for name, files in lfw.items() if len(files) >= PHONE_IMAGES}
    others = {f"lfwrest_{name}": files for name, files in lfw.items() if len(files) < PHONE_IMAGES}
    _align(phones, out)
    _align(dict(list(others.items())[:NUM_REST]), out)
    for domain in ("celeba", "bollywood"):
        for name, files in find_people(data / f"{domain}112", min_images=MIN_IMAGES).items():
            _link(files, out / f"{domain}_{name}")
    return sum(1 for _ in out.iterdir())


def _link(files: Sequence[Path], folder: Path) -> None:
    """Link up to ten pictures of a person: runs use no more."""
    make_folder(folder)
    for path in files[:MAX_IMAGES]:
        if not (folder / path.name).is_symlink():
            (folder / path.name).symlink_to(path.resolve())


def _align(people: People, out: Path) -> None:
    """Write up to ten aligned crops of each person, as PNG: nothing is lost between here and the features."""
    pipeline = FacePipeline(sface_with_adapter().spec.input, None, ChoiceRule.CENTRE)
    for name, files in people.items():
        folder = out / name
        if folder.is_dir():
            continue
        make_folder(folder)
        for path in files[:MAX_IMAGES]:
            try:
                crop = pipeline.acquire_file(path).crop
            except InputError:
                continue
            cv2.imwrite(str(folder / f"{path.stem}.png"), cv2.cvtColor(crop, cv2.COLOR_RGB2BGR))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folder and say how many people it holds."""
    parser = argparse.ArgumentParser(
        prog="python -m simulation.papers.spreadout.mix",
        description="One folder of CelebA, LFW and Bollywood people for the spread-out study.",
        epilog="Example: python -m simulation.papers.spreadout.mix --data data --out mixed",
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder with lfw/, celeba112/ and bollywood112/")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make, outside of any repository")
    args = parser.parse_args(arguments)
    try:
        people = mix(args.data, args.out)
    except MienError as error:
        cli.fail(error, as_json=False)
    cli.OUT.print(f"{people} people in {args.out}", markup=False, highlight=False)


if __name__ == "__main__":
    main()
