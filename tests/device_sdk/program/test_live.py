"""Watching: every change is told once, a blink is none, and any source of frames will do."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.people.recogniser import Operating
from device_sdk.people.verify import LowQuality, Match, NoFace, Outcome, Unknown
from device_sdk.program.live import Source, Still, open_camera, open_input, watch
from mien.errors import EmptyFolderError, ImageError, NotFoundError
from tests.device_sdk.clocks import HandClock
from tests.device_sdk.programs import ENVIRONMENT, command
from tests.device_sdk.synthetic import OWNER, images_of

AT = Operating(0.5, None)
ADA, BO, NOBODY, NONE = Match("Ada", 0.9, AT), Match("Bo", 0.9, AT), Unknown(0.1, AT), NoFace("no face")


def frames(count: int) -> list[Still]:
    return [Still(np.full((4, 4, 3), number, np.uint8), str(number)) for number in range(count)]


def seen(outcomes: Sequence[Outcome], *, is_moving: bool) -> list[tuple[str, Outcome]]:
    """Return what is told of pictures in which this is seen, one after another."""
    source = Source(frames(len(outcomes)), is_moving=is_moving)
    told = watch(source, lambda pixels: outcomes[int(pixels[0, 0, 0])], HandClock())
    return [(sighting.frame, sighting.outcome) for sighting in told]


def test_in_a_moving_picture_a_change_is_told_once_it_is_steady() -> None:
    outcomes = [NONE, NONE, ADA, NONE, ADA, ADA, ADA, NOBODY, BO, BO, BO, NONE, NONE]
    assert seen(outcomes, is_moving=True) == [("1", NONE), ("5", ADA), ("9", BO), ("12", NONE)]


def test_a_film_that_is_too_short_for_anything_to_be_steady_tells_what_came_last() -> None:
    assert seen([ADA], is_moving=True) == [("0", ADA)]
    assert seen([NONE, ADA], is_moving=True) == [("1", ADA)]
    assert seen([], is_moving=True) == []


def test_a_file_that_is_no_picture_stops_nobody_from_looking_at_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    (tmp_path / "b.jpg").write_bytes(images_of(OWNER)[0].read_bytes())
    first, second = watch(open_input(tmp_path), lambda _pixels: ADA, HandClock())
    assert isinstance(first.outcome, LowQuality)
    assert first.outcome.reasons == ("unreadable",)
    assert (first.frame, second.frame, second.outcome) == ("a.jpg", "b.jpg", ADA)


def test_of_single_pictures_each_is_told() -> None:
    assert seen([ADA, ADA, NONE], is_moving=False) == [("0", ADA), ("1", ADA), ("2", NONE)]


def test_frames_that_come_too_soon_are_passed_over() -> None:
    clock, looked = HandClock(), []

    def running() -> Iterator[Still]:
        for frame in frames(10):
            yield frame
            clock.advance(0.1)

    def identify(pixels: NDArray[np.uint8]) -> Outcome:
        looked.append(int(pixels[0, 0, 0]))
        return ADA

    list(watch(Source(running(), is_moving=True), identify, clock, every_s=0.25))
    assert looked == [0, 3, 6, 9]


def test_a_picture_a_folder_and_a_film_are_sources(tmp_path: Path) -> None:
    file = images_of(OWNER)[0]
    alone = list(open_input(file).frames)
    assert [frame.name for frame in alone] == [file.name]
    folder = list(open_input(file.parent).frames)
    assert len(folder) == 10
    np.testing.assert_array_equal(folder[0].pixels, alone[0].pixels)
    height, width = alone[0].pixels.shape[:2]
    film = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(film), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (width, height))
    for frame in folder[:5]:
        writer.write(np.ascontiguousarray(cv2.resize(frame.pixels, (width, height))[..., ::-1]))
    writer.release()
    shown = open_input(film)
    assert shown.is_moving
    found = list(shown.frames)
    assert [frame.name for frame in found] == ["0.0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]
    # JPEG is close in colour, and red stays red.
    assert np.abs(found[0].pixels.astype(int) - alone[0].pixels).mean() < 6
    assert "array" not in repr(found[0])


def test_what_cannot_be_watched_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no camera 63"):
        open_camera(63, HandClock())
    with pytest.raises(NotFoundError, match=re.escape(str(tmp_path / "gone.mp4"))):
        open_input(tmp_path / "gone.mp4")
    with pytest.raises(EmptyFolderError):
        open_input(tmp_path)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no film")
    with pytest.raises(ImageError, match=re.escape(f"{broken} cannot be read as a film")):
        list(open_input(broken).frames)


@pytest.mark.parametrize("words", [("--camera", "63"), ("--input", "broken.mp4")])
def test_opencv_and_ffmpeg_say_nothing_of_their_own(tmp_path: Path, words: tuple[str, str]) -> None:
    """In a process of its own, as FFmpeg asks but once how much it is to say."""
    (tmp_path / "broken.mp4").write_bytes(b"no film")
    done = subprocess.run(
        command("watch", *words, "--home", tmp_path),
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("warning"))
    assert line.startswith("error (")
