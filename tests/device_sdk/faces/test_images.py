"""decode_image and iter_image_files on files that are what they say (hostile ones: tests/attacks/test_images.py)."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from device_sdk.faces import decode_image, iter_image_files
from device_sdk.faces.images import IMAGE_SUFFIXES, WORKING_SIDE
from mien.errors import EmptyFolderError, ImageError, NotFoundError

WIDTH, HEIGHT = 64, 48


def encode(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def corners() -> NDArray[np.uint8]:
    """A 48x64 picture whose quarters are red, green (top), blue and white (bottom)."""
    picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    picture[:24, :32, 0] = picture[:24, 32:, 1] = picture[24:, :32, 2] = 255
    picture[24:, 32:] = 255
    return picture


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "BMP", "PPM"])
def test_lossless_formats_keep_every_pixel(file_format: str) -> None:
    decoded = decode_image(encode(Image.fromarray(corners()), file_format))
    assert decoded.dtype == np.uint8
    assert decoded.flags.c_contiguous
    assert decoded.flags.writeable
    np.testing.assert_array_equal(decoded, corners())


@pytest.mark.parametrize("file_format", ["JPEG", "WEBP", "AVIF"])
def test_lossy_formats_keep_colours_in_rgb_order(file_format: str) -> None:
    decoded = decode_image(encode(Image.new("RGB", (WIDTH, HEIGHT), (200, 100, 50)), file_format, quality=95))
    assert decoded.shape == (HEIGHT, WIDTH, 3)
    assert np.abs(decoded.astype(int) - (200, 100, 50)).max() <= 6


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_modes_without_transparency(mode: str) -> None:
    grey = Image.new("RGB", (WIDTH, HEIGHT), (255, 255, 255)).convert(mode)
    decoded = decode_image(encode(grey, "TIFF"))
    assert decoded.shape == (HEIGHT, WIDTH, 3)
    assert decoded.min() >= 254


def test_cmyk_jpeg_is_not_inverted() -> None:
    decoded = decode_image(encode(Image.new("RGB", (WIDTH, HEIGHT), (200, 100, 50)).convert("CMYK"), "JPEG"))
    assert np.abs(decoded.astype(int) - (200, 100, 50)).max() <= 6


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (128, 0), (129, 1), (257, 1), (32768, 128), (65535, 255)])
@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_is_scaled_not_cut(file_format: str, value: int, expected: int) -> None:
    image = Image.fromarray(np.full((4, 4), value, np.uint16))
    np.testing.assert_array_equal(decode_image(encode(image, file_format)), np.full((4, 4, 3), expected))


def test_transparency_is_laid_on_white() -> None:
    half_black = Image.new("RGBA", (4, 4), (0, 0, 0, 51))  # a fifth of black on white: 204
    assert (decode_image(encode(half_black)) == 204).all()
    grey_alpha = Image.new("LA", (4, 4), (100, 0))
    assert (decode_image(encode(grey_alpha)) == 255).all()


def test_transparent_palette_entry_and_colour_are_laid_on_white() -> None:
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert (decode_image(encode(palette)) == (40, 50, 60)).all()
    assert (decode_image(encode(palette, transparency=1)) == 255).all()
    assert (decode_image(encode(palette, transparency=bytes((255, 128)))) == (147, 152, 157)).all()
    assert (decode_image(encode(Image.new("RGB", (4, 4), (1, 2, 3)), transparency=(1, 2, 3))) == 255).all()


@pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_is_taken(file_format: str) -> None:
    first, second = (Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ((250, 0, 0), (0, 0, 250)))
    decoded = decode_image(encode(first, file_format, save_all=True, append_images=[second]))
    assert np.abs(decoded.astype(int) - (250, 0, 0)).max() <= 6


# What a camera held as EXIF says has stored, for a scene that is `corners` upright (TIFF 6.0, tag 274: where the
# stored row 0 and column 0 lie in the scene).
STORED = {
    1: lambda scene: scene,  # top, left
    2: lambda scene: scene[:, ::-1],  # top, right
    3: lambda scene: scene[::-1, ::-1],  # bottom, right
    4: lambda scene: scene[::-1],  # bottom, left
    5: lambda scene: scene.swapaxes(0, 1),  # left, top
    6: lambda scene: scene.swapaxes(0, 1)[::-1],  # right, top
    7: lambda scene: scene[::-1, ::-1].swapaxes(0, 1),  # right, bottom
    8: lambda scene: scene.swapaxes(0, 1)[:, ::-1],  # left, bottom
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "JPEG", "WEBP"])
def test_every_exif_orientation_comes_out_upright(file_format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](corners())))
    options = {"quality": 95} if file_format in ("JPEG", "WEBP") else {}
    decoded = decode_image(encode(stored, file_format, exif=exif, **options))
    assert decoded.shape == (HEIGHT, WIDTH, 3)
    for row, column in ((12, 16), (12, 48), (36, 16), (36, 48)):
        assert np.abs(decoded[row, column].astype(int) - corners()[row, column]).max() <= 12


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_unknown_orientation_is_left_alone(orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    np.testing.assert_array_equal(decode_image(encode(Image.fromarray(corners()), exif=exif)), corners())


def test_damaged_metadata_does_not_cost_the_picture() -> None:
    data = encode(Image.fromarray(corners()), exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    np.testing.assert_array_equal(decode_image(data), corners())


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (4000, 1)])
def test_tiny_and_thin_pictures(size: tuple[int, int]) -> None:
    decoded = decode_image(encode(Image.new("RGB", size, (9, 9, 9))))
    assert decoded.shape == (size[1], min(size[0], WORKING_SIDE), 3)
    assert (decoded == 9).all()


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_large_pictures_come_at_the_working_size(file_format: str, mode: str) -> None:
    ramp = np.tile(np.linspace(0, 255, 5000, dtype=np.uint8), (3000, 1))
    decoded = decode_image(encode(Image.fromarray(ramp).convert(mode), file_format))
    assert decoded.shape == (round(3000 * WORKING_SIDE / 5000), WORKING_SIDE, 3)
    expected = (np.arange(WORKING_SIDE) + 0.5) / WORKING_SIDE * 255
    assert np.abs(decoded[600, :, 0] - expected).max() <= 3


@pytest.mark.parametrize("path", [".", "/", ".."])
def test_a_path_without_a_name_is_told_as_it_is(path: str) -> None:
    with pytest.raises(ImageError, match=rf"^{re.escape(path)} is not a file"):
        decode_image(path)


def test_heic_says_how_to_convert() -> None:
    with pytest.raises(ImageError, match=r"HEIC.*JPEG"):
        decode_image(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(100))
    with pytest.raises(ImageError, match="HEIC"):  # an iPhone's burst: only the compatible brands say it
        decode_image(b"\x00\x00\x00\x18ftypmif1\x00\x00\x00\x00mif1heic" + bytes(100))


def test_32_bit_and_float_pixels_are_refused_in_words() -> None:
    for image in (Image.new("F", (4, 4), 0.5), Image.new("I", (4, 4), 70000)):
        with pytest.raises(ImageError, match="8 bits"):
            decode_image(encode(image, "TIFF"))


def test_a_path_is_named_and_bytes_are_not(tmp_path: Path) -> None:
    path = tmp_path / "me at the beach.jpg"
    path.write_bytes(b"no")
    with pytest.raises(ImageError, match=f"^{re.escape(str(path))} is not an image"):
        decode_image(path)
    with pytest.raises(ImageError, match=r"^the image is not an image"):
        decode_image(b"no")
    path.write_bytes(encode(Image.fromarray(corners())))
    np.testing.assert_array_equal(decode_image(str(path)), corners())


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=f"no file {re.escape(str(tmp_path / 'gone.jpg'))};"):
        decode_image(tmp_path / "gone.jpg")
    with pytest.raises(NotFoundError):
        decode_image(tmp_path / "gone" / "gone.jpg")
    with pytest.raises(ImageError, match="not a file"):
        decode_image(tmp_path)


class TestFolders:
    """iter_image_files."""

    def test_images_are_sorted_and_others_left_out(self, tmp_path: Path) -> None:
        for name in ("b.JPG", "a.png", "c.heic", "notes.txt", ".hidden.jpg", "d"):
            (tmp_path / name).touch()
        (tmp_path / "folder.jpg").mkdir()
        assert [path.name for path in iter_image_files(tmp_path)] == ["a.png", "b.JPG", "c.heic"]

    def test_a_folder_without_images(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").touch()
        with pytest.raises(EmptyFolderError, match="JPEG"):
            iter_image_files(tmp_path)

    def test_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file.jpg").touch()
        for path in (tmp_path / "gone", tmp_path / "file.jpg"):
            with pytest.raises(NotFoundError):
                iter_image_files(path)

    def test_suffixes_are_lower_case(self) -> None:
        assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in IMAGE_SUFFIXES)
