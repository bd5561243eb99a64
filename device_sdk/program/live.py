"""Looking at a camera, a film or pictures one after another, and telling who is there whenever that changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import decode_image, iter_image_files
from device_sdk.faces.images import shown_path
from device_sdk.people.enroll import UNREADABLE
from device_sdk.people.verify import LowQuality, Match, Outcome
from mien.errors import ImageError, NotFoundError
from mien.shell.clock import Clock

FILM_SUFFIXES: Final = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v")
_STEADY: Final = 2
"""Number of consecutive looks that have to agree in a moving picture: a blink is no change."""


@dataclass(frozen=True)
class Still:
    """One picture (H, W, 3) uint8 RGB and what it is called: a file, or the time in a film or before a camera."""

    pixels: NDArray[np.uint8] = field(repr=False)
    name: str


@dataclass(frozen=True)
class Unreadable:
    """A file among others that is no picture, and what to do about it."""

    name: str
    message: str


@dataclass(frozen=True)
class Source:
    """Source of frames. `is_moving`: a camera or film, whose frames resemble each other."""

    frames: Iterable[Still | Unreadable]
    is_moving: bool


@dataclass(frozen=True)
class Sighting:
    """Outcome that holds from this frame on."""

    frame: str
    outcome: Outcome


def open_camera(number: int, clock: Clock) -> Source:
    """Return a camera's frames, without end; raises NotFoundError where there is no such camera."""
    capture = _opened(number)
    if not capture.isOpened():
        capture.release()
        raise NotFoundError(
            f"there is no camera {number} that this account may use; plug one in, name another --camera, or show "
            "pictures or a film (--input)"
        )

    def frames() -> Iterator[Still]:
        began_s = clock.monotonic_s()
        try:
            while (pixels := _next(capture)) is not None:
                yield Still(pixels, f"{clock.monotonic_s() - began_s:.1f} s")
        finally:
            capture.release()

    return Source(frames(), is_moving=True)


def open_input(path: Path) -> Source:
    """Return the frames of a picture, a folder of pictures or a film; raises NotFoundError, ImageError, and
    EmptyFolderError for a folder without pictures.
    """
    if path.is_dir():
        files = iter_image_files(path)
        return Source(map(_read, files), is_moving=False)
    if not path.exists():
        raise NotFoundError(f"there is no file or folder {shown_path(path)}; check the path")
    if path.suffix.lower() in FILM_SUFFIXES:
        return Source(_film(path), is_moving=True)
    return Source([Still(decode_image(path), path.name)], is_moving=False)


def watch(
    source: Source, identify: Callable[[NDArray[np.uint8]], Outcome], clock: Clock, *, every_s: float = 0.0
) -> Iterator[Sighting]:
    """Yield what is seen, whenever it changes; of pictures that are no film, what is seen in each.

    `every_s` is the least time between two looks: frames in between are passed over, so that a phone stays cool.
    """
    told: object = None
    seen, times, last = None, 0, None
    next_look_s = -np.inf
    for frame in source.frames:
        if isinstance(frame, Unreadable):
            yield Sighting(frame.name, LowQuality((UNREADABLE,), frame.message))
            continue
        if source.is_moving and clock.monotonic_s() < next_look_s:
            continue
        next_look_s = clock.monotonic_s() + every_s
        outcome = identify(frame.pixels)
        if not source.is_moving:
            yield Sighting(frame.name, outcome)
            continue
        what = (type(outcome), outcome.name if isinstance(outcome, Match) else "")
        seen, times, last = what, times + 1 if what == seen else 1, Sighting(frame.name, outcome)
        if times >= _STEADY and what != told:
            told = what
            yield last
    if told is None and last is not None:  # a film too short for anything to be steady
        yield last


def _read(file: Path) -> Still | Unreadable:
    try:
        return Still(decode_image(file), file.name)
    except (ImageError, NotFoundError) as error:
        return Unreadable(file.name, error.message)


def _film(path: Path) -> Iterator[Still]:
    capture = _opened(str(path))
    try:
        if not capture.isOpened():
            raise ImageError(f"{shown_path(path)} cannot be read as a film; convert it to MP4, or name pictures")
        number = 0
        rate = capture.get(cv2.CAP_PROP_FPS) or 25.0
        while (pixels := _next(capture)) is not None:
            yield Still(pixels, f"{number / rate:.1f} s")
            number += 1
        if number == 0:
            raise ImageError(
                f"{shown_path(path)} holds no picture that can be read; convert it to MP4, or name pictures"
            )
    finally:
        capture.release()


def _opened(source: int | str) -> cv2.VideoCapture:
    """Return the capture of a camera's number or a film's path, open or not, of which OpenCV and FFmpeg print nothing.

    What they would say of a missing camera is about their own drivers; the errors here say what to do.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # AV_LOG_QUIET
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        return cv2.VideoCapture(source)
    finally:
        cv2.utils.logging.setLogLevel(level)


def _next(capture: cv2.VideoCapture) -> NDArray[np.uint8] | None:
    """Return the next frame (H, W, 3) RGB, None at the end or when the camera was unplugged."""
    read, frame = capture.read()
    if not read or frame is None:
        return None
    return np.ascontiguousarray(np.asarray(frame, np.uint8)[..., ::-1])
