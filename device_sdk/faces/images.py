"""From an image file to upright RGB pixels, with memory bounded whatever the file claims.

Pillow decodes; this module decides what Pillow may see: formats that phones and people use, sizes within a stated
limit, and nothing of the picture in an error. A large picture comes out with its longest side at `WORKING_SIDE`.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import threading
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from mien.errors import ConfigError, EmptyFolderError, ImageError, NotFoundError

Pixels = NDArray[np.uint8]
ColourOrder = Literal["rgb", "bgr"]

# Longest side of what `decode_image` returns: a face over a twentieth of the picture still has 100 pixels.
WORKING_SIDE: Final = 2048
# Largest file read at all.
MAX_FILE_BYTES: Final = 128 * 2**20
# Most pixels a header may claim. Pillow holds 4 bytes a pixel while decoding: 256 MB.
MAX_PIXELS: Final = 64_000_000
# A sequential JPEG is decoded at 1/2, 1/4 or 1/8 of its size, row by row, so it may claim more: Pillow's own limit.
MAX_PIXELS_REDUCED: Final = 178_000_000
# A progressive JPEG is gone through once per scan; cameras and web tools write about ten.
MAX_JPEG_SCANS: Final = 100
# What transparent parts are laid on: white, as viewers and web pages do.
BACKGROUND: Final = (255, 255, 255)

IMAGE_SUFFIXES: Final = frozenset(
    # HEIC is listed so that a folder of them says how to convert, rather than "no images".
    (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".heic", ".heif")
)
READABLE: Final = "JPEG, PNG, WebP, AVIF, GIF, BMP, TIFF or PPM"

_FORMATS: Final = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
_HEIC_BRANDS: Final = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# What Pillow's plugins raise on damaged files; its own documentation promises OSError alone, fuzzing finds the rest.
_DECODER_ERRORS: Final = (
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
# Guards the process-wide warning filters, which Pillow's complaints about metadata would otherwise reach.
_WARNINGS_LOCK: Final = threading.Lock()


@dataclass(frozen=True, eq=False)
class Frame:
    """A camera's frame: pixels (H, W, 3) uint8, and in which order their colours are: "rgb", or "bgr" as in OpenCV.

    Raises ConfigError for other pixels or another order.
    """

    pixels: Pixels = field(repr=False)
    order: ColourOrder

    def __post_init__(self) -> None:
        if not isinstance(self.pixels, np.ndarray) or self.pixels.ndim != 3 or self.pixels.shape[2] != 3:
            raise ConfigError(f"a frame of shape {np.shape(self.pixels)}; give pixels (height, width, 3), uint8")
        if self.pixels.dtype != np.uint8:
            raise ConfigError(f"a frame of {self.pixels.dtype}; give pixels (height, width, 3), uint8 RGB or BGR")
        if self.order not in ("rgb", "bgr"):
            raise ConfigError(f"a frame's order is {self.order!r}; say rgb, or bgr for what OpenCV reads")

    @property
    def rgb(self) -> Pixels:
        """The pixels in the order red, green, blue."""
        return self.pixels if self.order == "rgb" else np.ascontiguousarray(self.pixels[..., ::-1])


ImageSource = str | os.PathLike[str] | bytes | Frame | Image.Image | Pixels
"""An image file or its bytes, a frame, a Pillow picture, or pixels (H, W, 3) uint8, which are taken for RGB."""


def is_picture(source: object) -> bool:
    """Return whether this is one picture (or a folder), not several of them."""
    if isinstance(source, np.ndarray):
        return source.ndim == 3
    return isinstance(source, str | os.PathLike | bytes | bytearray | memoryview | Frame | Image.Image)


def name_of(source: ImageSource) -> str | None:
    """Return a picture's name: its file's path as it was given, fit for a message, None where there is no file."""
    return shown_path(source) if isinstance(source, str | os.PathLike) else None


def pixels_of(source: ImageSource) -> Pixels:
    """Return a picture, however it is given, as pixels (H, W, 3) uint8 RGB; errors as `decode_image` and `Frame`.

    Pixels and frames come as they are, all others as `decode_image` gives them.
    """
    if isinstance(source, Frame):
        return source.rgb
    if isinstance(source, np.ndarray):
        return Frame(source, "rgb").pixels
    if isinstance(source, bytes | bytearray | memoryview):
        return decode_image(bytes(source))
    if isinstance(source, Image.Image):
        return _guarded(lambda: _opened(source), "the picture")
    if isinstance(source, str | os.PathLike):
        return decode_image(source)
    raise ConfigError(
        f"a picture is given as {type(source).__name__}; give a file, its bytes, a Pillow picture, a Frame, or pixels "
        "(height, width, 3) uint8 RGB"
    )


def decode_image(source: bytes | str | os.PathLike[str]) -> Pixels:
    """Return an image as upright pixels (H, W, 3), uint8 RGB, longest side at most `WORKING_SIDE`.

    `source` is a file's path or its bytes. EXIF orientation is applied, transparency is laid on `BACKGROUND`, 16-bit
    grey is scaled to 8 bit, of an animation the first frame is taken; colour profiles are not applied.

    Raises NotFoundError where there is no such file, and ImageError (naming the file only if a path was given) for
    what cannot be decoded or claims more than the limits of this module, before memory for its pixels is taken.
    """
    if isinstance(source, bytes):
        return _decode(source, "the image")
    path = Path(source)
    return _decode(_read_file(path), shown_path(source))


def iter_image_files(folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the image files directly in a folder, by suffix, sorted by name; hidden files are left out.

    Raises NotFoundError where there is no such folder, EmptyFolderError where it holds no image.
    """
    root = Path(folder)
    if not root.is_dir():
        raise NotFoundError(f"there is no folder {shown_path(folder)}; check the path")
    files = tuple(
        sorted(
            path
            for path in root.iterdir()
            if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()
        )
    )
    if not files:
        raise EmptyFolderError(f"folder {shown_path(folder)} holds no images ({READABLE}); name a folder that has them")
    return files


def display_name(name: str) -> str:
    """Return a file's name fit for a message: control characters and undecodable bytes are escaped."""
    return name if name.isprintable() else ascii(name)


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path as it was given, not its last part alone: folders of people hold pictures of the same names."""
    return display_name(str(Path(path)))


def _read_file(path: Path) -> bytes:
    """Return a regular file's bytes; devices, pipes and folders are refused before anything is read from them."""
    name = shown_path(path)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise ImageError(f"{name} is not a file; name an image file")
        if info.st_size > MAX_FILE_BYTES:
            raise ImageError(
                f"{name} has {info.st_size / 2**20:.0f} MiB, over the limit of {MAX_FILE_BYTES // 2**20}; "
                "save it smaller"
            )
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"there is no file {name}; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        detail = error.strerror if isinstance(error, OSError) else "not a possible path"
        raise ImageError(f"{name} cannot be read ({detail}); check its permissions") from None


def _decode(data: bytes, name: str) -> Pixels:
    """Return the upright pixels of an image file's bytes; `name` is how errors call it."""
    _refuse_by_content(data, name)

    def read() -> Pixels:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _refuse_by_header(image, data, name)
            return _upright_rgb(image)

    try:
        return _guarded(read, name)
    except UnidentifiedImageError:
        raise ImageError(_not_an_image(data, name)) from None


def _opened(image: Image.Image) -> Pixels:
    """Return the pixels of a picture that somebody else has opened, and goes on using."""
    _refuse_by_header(image, b"", "the picture")
    return _upright_rgb(image.copy())


def _guarded(read: Callable[[], Pixels], name: str) -> Pixels:
    """Return what `read` gives; what Pillow's decoders raise becomes an ImageError, UnidentifiedImageError apart."""
    try:
        with _WARNINGS_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except UnidentifiedImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(_too_many_pixels(name, MAX_PIXELS_REDUCED)) from None
    except _DECODER_ERRORS as error:
        # Only the kind of the error: its text may quote the file.
        raise ImageError(f"{name} is damaged or incomplete ({type(error).__name__}); replace it") from None


def _refuse_by_content(data: bytes, name: str) -> None:
    """Raise ImageError for what must not reach a decoder, or deserves a better sentence than a decoder's."""
    if not data:
        raise ImageError(f"{name} is empty (0 bytes); replace it")
    if len(data) > MAX_FILE_BYTES:
        raise ImageError(f"{name} is over the limit of {MAX_FILE_BYTES // 2**20} MiB; save it smaller")
    if data[4:8] == b"ftyp":
        box = data[8 : min(struct.unpack(">I", data[:4])[0], 256)]
        if _HEIC_BRANDS & {box[i : i + 4] for i in range(0, len(box), 4)}:
            raise ImageError(
                f"{name} is a HEIC photo, which cannot be read here; convert it to JPEG (`heif-convert photo.heic "
                "photo.jpg`, or on the phone share it as JPEG / set the camera to 'Most Compatible')"
            )
    # Decoders of WebP take memory for the whole canvas on opening, so its size is read here.
    pixels = _webp_pixels(data)
    if pixels > MAX_PIXELS:
        raise ImageError(_too_many_pixels(name, MAX_PIXELS))


def _webp_pixels(data: bytes) -> int:
    """Return the pixels that a WebP header claims (RFC 9649 §2.5-2.7), 0 for anything else."""
    if len(data) < 30 or data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return 0
    kind, body = data[12:16], data[20:30]
    if kind == b"VP8X":
        return (1 + int.from_bytes(body[4:7], "little")) * (1 + int.from_bytes(body[7:10], "little"))
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (1 + (bits & 0x3FFF)) * (1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 ":
        return (int.from_bytes(body[6:8], "little") & 0x3FFF) * (int.from_bytes(body[8:10], "little") & 0x3FFF)
    return 0


def _refuse_by_header(image: Image.Image, data: bytes, name: str) -> None:
    """Raise ImageError if decoding would take more memory or time than this module promises."""
    if image.mode in ("F", "LAB") or (image.mode == "I" and image.format == "TIFF"):
        raise ImageError(f"{name} holds {image.mode} pixels, whose range is not stated; save it with 8 bits a channel")
    jpeg = image.format in ("JPEG", "MPO")
    sequential = jpeg and "progressive" not in image.info
    limit = MAX_PIXELS_REDUCED if sequential else MAX_PIXELS
    if image.width * image.height > limit:
        raise ImageError(_too_many_pixels(name, limit))
    # In entropy-coded data 0xFF is always followed by 0 or a restart marker, so this counts start-of-scan markers.
    if jpeg and data.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise ImageError(f"{name} is stored in too many passes (over {MAX_JPEG_SCANS}); save it again as plain JPEG")


def _upright_rgb(image: Image.Image) -> Pixels:
    """Return an opened image, reduced to the working size, turned upright, as RGB."""
    if image.format in ("JPEG", "MPO"):
        # Reduced inside the decoder, to between one and two times the working size.
        scale = min(1.0, WORKING_SIDE / max(image.size))
        image.draft(None, (max(1, int(image.width * scale)), max(1, int(image.height * scale))))
    image.load()
    orientation = _orientation(image)
    plain = _plain_mode(image)
    plain.thumbnail((WORKING_SIDE, WORKING_SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0)
    method = _UPRIGHT.get(orientation)
    upright = plain if method is None else plain.transpose(method)
    return np.array(_flatten(upright), dtype=np.uint8)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1..8; 1 where there is none or the metadata is damaged (the pixels may be fine)."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except _DECODER_ERRORS:
        return 1
    return value if isinstance(value, int) else 1


def _plain_mode(image: Image.Image) -> Image.Image:
    """Return the image in a mode that can be averaged: L, RGB, RGBA or CMYK."""
    if image.mode.startswith("I"):
        return _from_16_bit(image)
    if image.has_transparency_data:
        return image.convert("RGBA")
    if image.mode in ("L", "RGB", "CMYK"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _from_16_bit(image: Image.Image) -> Image.Image:
    """Return 16-bit grey (Pillow's modes I;16 and I) as 8-bit grey, rounded: 65535 becomes 255."""
    table = np.rint(np.arange(65536) / 257.0).astype(np.uint8)
    return Image.fromarray(table[np.asarray(image)])


def _flatten(image: Image.Image) -> Image.Image:
    """Return the image as RGB, transparency laid on `BACKGROUND`."""
    if image.mode != "RGBA":
        return image.convert("RGB")
    below = Image.new("RGBA", image.size, (*BACKGROUND, 255))
    return Image.alpha_composite(below, image).convert("RGB")


def _too_many_pixels(name: str, limit: int) -> str:
    return f"{name} claims more than {limit / 1e6:.0f} megapixels; save it smaller"


def _not_an_image(data: bytes, name: str) -> str:
    """Return the message for a file that no decoder knows, with a guess where the guess is safe."""
    guess = ""
    if data.lstrip()[:1] == b"<":
        guess = " (it looks like a web page or SVG drawing)"
    elif data[:4] == b"%PDF":
        guess = " (it is a PDF)"
    return f"{name} is not an image that can be read{guess}; use {READABLE}"
