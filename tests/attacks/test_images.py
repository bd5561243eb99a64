"""Hostile image files: bombs, lies, fragments. Only errors of Mien may come out, and memory stays bounded."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from device_sdk.faces import FacePipeline, decode_image
from device_sdk.faces.images import MAX_FILE_BYTES, MAX_JPEG_SCANS, MAX_PIXELS, MAX_PIXELS_REDUCED, WORKING_SIDE
from mien.errors import ImageError, MienError, NoFaceError
from mien.specs import FaceInputSpec

SMALL = Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8))


def encode(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def png(width: int, height: int, pixels: bytes, *extra: bytes, bits: int = 8, colour: int = 2) -> bytes:
    """Return a PNG with these compressed pixels and whatever header."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), *extra, chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tall_jpeg(width: int, bands: int, **options: object) -> bytes:
    """Return a JPEG of `width` x (128 * bands) pixels that was never held in memory.

    Eight rows of blocks, each with its restart marker RST0..RST7, repeated; restarting makes them independent.
    """
    rows = np.random.default_rng(1).integers(100, 140, (128, width // 50, 3), dtype=np.uint8).repeat(50, axis=1)
    data = encode(Image.fromarray(rows), "JPEG", quality=50, restart_marker_rows=1, **options)
    start = data.index(b"\xff\xda")
    start += 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    scan = data[start:-2]
    header = bytearray(data[:start])
    frame = header.index(b"\xff\xc0")
    header[frame + 5 : frame + 7] = struct.pack(">H", 128 * bands)
    return bytes(header) + b"\xff\xd7".join([scan] * bands) + b"\xff\xd9"


def peak_memory_mb(path: Path) -> tuple[float, str]:
    """Return how much a fresh process grew at its peak, in MB, by decoding a file, and what it printed."""
    program = """
import sys
from device_sdk.faces import decode_image
from mien.errors import MienError

def peak_kb():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = peak_kb()
try:
    print(decode_image(sys.argv[1]).shape)
except MienError as error:
    print(type(error).__name__)
print((peak_kb() - before) / 1000)
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=240, check=True
    )
    outcome, grown = run.stdout.split("\n")[:2]
    return float(grown), outcome


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc (Linux)")


class TestSize:
    """What a picture may cost does not depend on what it claims."""

    @needs_proc
    @pytest.mark.parametrize(("width", "bands"), [(10_000, 78), (2_700, 500)], ids=["square", "panorama"])
    def test_jpeg_of_over_100_megapixels_takes_little_memory(self, tmp_path: Path, width: int, bands: int) -> None:
        path = tmp_path / "huge.jpg"
        path.write_bytes(tall_jpeg(width, bands))
        grown, outcome = peak_memory_mb(path)
        decoded_height, decoded_width, _ = (int(side) for side in outcome.strip("()").split(","))
        assert max(decoded_height, decoded_width) == WORKING_SIDE
        assert decoded_width / decoded_height == pytest.approx(width / (128 * bands), rel=0.01)
        assert grown < 160  # Pillow's pixels alone would be 400

    @needs_proc
    def test_progressive_jpeg_keeps_to_the_lower_limit(self, tmp_path: Path) -> None:
        """A progressive picture has to be held whole, so 100 megapixels of it are refused by their header."""
        path = tmp_path / "huge.jpg"
        data = bytearray(encode(SMALL, "JPEG", progressive=True))
        frame = data.index(b"\xff\xc2")
        data[frame + 5 : frame + 9] = struct.pack(">HH", 10_000, 10_000)
        path.write_bytes(bytes(data))
        grown, outcome = peak_memory_mb(path)
        assert outcome == "ImageError"
        assert grown < 20

    @needs_proc
    def test_png_bomb_within_the_limit_stays_within_the_promise(self, tmp_path: Path) -> None:
        """64 megapixels of nothing, 190 kB as a file, cost what the limit says: 4 bytes a pixel and a little."""
        path = tmp_path / "bomb.png"
        packer = zlib.compressobj(9)
        row = bytes(1 + 8000 * 3)
        path.write_bytes(png(8000, 8000, b"".join(packer.compress(row) for _ in range(8000)) + packer.flush()))
        assert path.stat().st_size < 200_000
        grown, outcome = peak_memory_mb(path)
        assert outcome == str((WORKING_SIDE, WORKING_SIDE, 3))
        assert grown < 4 * MAX_PIXELS / 1e6 + 150

    @needs_proc
    @pytest.mark.parametrize(("width", "height"), [(2**31 - 1, 2**31 - 1), (100_000, 100_000), (8001, 8000)])
    def test_png_header_over_the_limit_is_refused_before_memory_is_taken(
        self, tmp_path: Path, width: int, height: int
    ) -> None:
        path = tmp_path / "liar.png"
        path.write_bytes(png(width, height, zlib.compress(b"")))
        grown, outcome = peak_memory_mb(path)
        assert outcome == "ImageError"
        assert grown < 20

    def test_jpeg_header_over_the_limit(self) -> None:
        data = bytearray(encode(SMALL, "JPEG"))
        frame = data.index(b"\xff\xc0")
        data[frame + 5 : frame + 9] = struct.pack(">HH", 65_000, 65_000)
        assert MAX_PIXELS_REDUCED < 65_000**2
        with pytest.raises(ImageError, match="megapixels"):
            decode_image(bytes(data))

    @pytest.mark.parametrize(
        "header",
        [
            b"VP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff\xff\xff" * 2,
            b"VP8L" + struct.pack("<I", 10) + b"\x2f" + struct.pack("<I", (16383) | (16383 << 14)) + bytes(5),
            b"VP8 " + struct.pack("<I", 10) + bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 16383, 16383),
        ],
        ids=["extended", "lossless", "lossy"],
    )
    def test_webp_header_over_the_limit(self, header: bytes) -> None:
        body = b"WEBP" + header
        with pytest.raises(ImageError, match="megapixels"):
            decode_image(b"RIFF" + struct.pack("<I", len(body)) + body + bytes(64))

    def test_gif_with_a_frame_larger_than_its_canvas(self) -> None:
        data = bytearray(encode(SMALL, "GIF"))
        frame = data.index(b"\x2c", 13 + 3 * 2 ** ((data[10] & 7) + 1))
        data[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
        with pytest.raises(ImageError):
            decode_image(bytes(data))

    def test_file_over_the_limit_is_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "sparse.jpg"
        with path.open("wb") as file:
            file.truncate(100 * MAX_FILE_BYTES)
        with pytest.raises(ImageError, match="MiB"):
            decode_image(path)

    def test_text_chunk_bomb(self) -> None:
        text = b"Comment\0\0" + zlib.compress(bytes(200_000_000), 9)
        chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
        with pytest.raises(ImageError):
            decode_image(png(1, 1, zlib.compress(bytes(4)), chunk))

    def test_jpeg_of_a_thousand_scans(self) -> None:
        data = encode(SMALL, "JPEG", progressive=True)
        start = data.rindex(b"\xff\xda")
        scans = data[:start] + data[start:-2] * (MAX_JPEG_SCANS + 1) + b"\xff\xd9"
        with pytest.raises(ImageError, match="passes"):
            decode_image(scans)


class TestLies:
    """Files that are not what their name says."""

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "empty"),
            (b"\0", "not an image"),
            (b"  <svg xmlns='http://www.w3.org/2000/svg' width='1e9'/>", "SVG"),
            (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
            (b"%PDF-1.7\n", "PDF"),
            (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
            (b"PK\x03\x04" + bytes(60), "not an image"),
            (b"GIF89a", "not an image|damaged"),
            (b"\xff\xd8\xff\xd9", "not an image|damaged"),
            (b"BM" + bytes(60), "not an image|damaged"),
            (b"II*\0\x08\0\0\0" + b"\xff" * 60, "not an image|damaged"),
            (b"P6 1 1 99999999999999999999\n\0", "not an image|damaged"),
            (b"RIFF\xff\xff\xff\xffWEBPVP8X" + bytes(40), "not an image|damaged"),
            (b"\0\0\0\x1cftypavif" + bytes(60), "not an image|damaged"),
        ],
    )
    def test_disguised_as_jpg(self, tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "photo.jpg"
        path.write_bytes(content)
        with pytest.raises(ImageError, match=message) as raised:
            decode_image(path)
        assert "photo.jpg" in str(raised.value)

    def test_content_never_reaches_the_message(self) -> None:
        secret = b"<html>attacker-chosen \x1b[31m text"
        for data in (secret, encode(SMALL, "PNG")[:40] + secret):
            with pytest.raises(ImageError) as raised:
                decode_image(data)
            assert "attacker" not in str(raised.value)
            assert raised.value.__cause__ is None
            assert raised.value.__suppress_context__

    def test_control_characters_in_a_name_are_escaped(self, tmp_path: Path) -> None:
        path = tmp_path / "a\x1b[2J\n.jpg"
        path.write_bytes(b"no")
        with pytest.raises(ImageError) as raised:
            decode_image(path)
        assert str(raised.value).isprintable()

    @pytest.mark.parametrize("path", ["a\0b.jpg", "x" * 5000, "/dev/null", "/dev/zero"])
    def test_impossible_paths_and_devices(self, path: str) -> None:
        with pytest.raises(MienError):
            decode_image(path)

    def test_pipe_does_not_block(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe.jpg"
        os.mkfifo(pipe)
        with pytest.raises(ImageError, match="not a file"):
            decode_image(pipe)


SAMPLES = {
    "jpeg": encode(SMALL, "JPEG"),
    "progressive": encode(SMALL, "JPEG", progressive=True),
    "cmyk": encode(SMALL.convert("CMYK"), "JPEG"),
    "png": encode(SMALL, "PNG"),
    "palette": encode(SMALL.convert("P"), "PNG", transparency=bytes(range(256))),
    "16-bit": encode(Image.fromarray(np.arange(64 * 48, dtype=np.uint16).reshape(48, 64) * 20), "PNG"),
    "webp": encode(SMALL, "WEBP"),
    "gif": encode(SMALL, "GIF"),
    "bmp": encode(SMALL, "BMP"),
    "tiff": encode(SMALL, "TIFF", compression="tiff_lzw"),
    "ppm": encode(SMALL, "PPM"),
    "avif": encode(SMALL, "AVIF"),
}


def decodes_or_says_why(data: bytes) -> None:
    """Fail if anything but a picture or an error of Mien comes of `data`, or it takes over five seconds of work."""
    started = time.process_time()
    try:
        decoded = decode_image(data)
    except MienError:
        pass
    else:
        assert decoded.ndim == 3
        assert decoded.shape[2] == 3
        assert max(decoded.shape[:2]) <= WORKING_SIDE
    assert time.process_time() - started < 5


class TestFragments:
    """Truncated, flipped and spliced files of every format."""

    @pytest.mark.parametrize("kind", SAMPLES)
    def test_every_short_truncation(self, kind: str) -> None:
        data = SAMPLES[kind]
        for length in [*range(min(len(data), 120)), *range(120, len(data), max(1, len(data) // 40))]:
            decodes_or_says_why(data[:length])

    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
    def test_half_a_file_is_refused(self, kind: str) -> None:
        with pytest.raises(ImageError, match=r"damaged|not an image"):
            decode_image(SAMPLES[kind][: len(SAMPLES[kind]) // 2])

    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        kind=st.sampled_from(sorted(SAMPLES)),
        # Headers are at the front, and that is where lies are told.
        flips=st.lists(
            st.tuples(st.one_of(st.integers(0, 80), st.integers(0, 10_000)), st.integers(0, 255)),
            min_size=1,
            max_size=8,
        ),
        cut=st.one_of(st.none(), st.integers(1, 10_000)),
    )
    def test_flipped_bytes(self, kind: str, flips: list[tuple[int, int]], cut: int | None) -> None:
        data = bytearray(SAMPLES[kind])
        for position, value in flips:
            data[position % len(data)] = value
        decodes_or_says_why(bytes(data[:cut]))

    @settings(max_examples=100, deadline=None)
    @given(st.sampled_from(sorted(SAMPLES)), st.sampled_from(sorted(SAMPLES)), st.integers(0, 200))
    def test_spliced_files(self, front: str, back: str, at: int) -> None:
        decodes_or_says_why(SAMPLES[front][:at] + SAMPLES[back][at:])

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=300))
    def test_noise(self, data: bytes) -> None:
        decodes_or_says_why(data)


class TestPictures:
    """Whole pictures that hold no face must end in NoFaceError, whatever their size or content."""

    @pytest.mark.parametrize(
        "shape", [(1, 1), (1, 2048), (2048, 1), (9, 9), (10, 10), (11, 2048), (31, 33), (640, 641)]
    )
    @pytest.mark.parametrize("content", ["black", "white", "noise"])
    def test_no_face(self, shape: tuple[int, int], content: str, pipeline: FacePipeline) -> None:
        noise = np.random.default_rng(2).integers(0, 256, (*shape, 3), dtype=np.uint8)
        image = noise if content == "noise" else np.full_like(noise, 255 if content == "white" else 0)
        with pytest.raises(NoFaceError):
            pipeline.acquire(image)


@pytest.fixture(scope="module")
def pipeline() -> FacePipeline:
    return FacePipeline(FaceInputSpec())
