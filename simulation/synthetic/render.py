"""A picture of a mesh: painter's algorithm for what is visible, then light and camera for each pixel.

The painter writes triangle numbers instead of colours; positions, normals and paint are then interpolated inside each
pixel's triangle, which gives smooth shading and sharp features on a coarse mesh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from simulation.synthetic.bust import Bust, Part
from simulation.synthetic.geometry import Floats, Indices, raise_surface, rotation_vector, turn, vertex_normals
from simulation.synthetic.paint import Surface, albedo, hair_share, linear
from simulation.synthetic.parameters import ImageParameters, Look

IMAGE_SIZE: Final = 224
_OVERSAMPLING: Final = 2
_CAMERA_DISTANCE_M: Final = 1.4
_TORSO_FOLLOW: Final = 0.35  # share of a head turn that the shoulders take part in
_HAIR_FADE_CM: Final = 3.5  # hair rises to its full depth this gently, or the coarse mesh would show as teeth
_SUBPIXEL_BITS: Final = 4  # fixed-point coordinates of OpenCV's polygon filler

Image = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Projection:
    """Vertices as a camera sees them: `pixels` (V, 2) and `depth` (V,), the distance from the camera in metres."""

    pixels: Floats
    depth: Floats


def project(vertices_V3: Floats, target_3: Floats, pixels_per_m: float, centre_px: tuple[float, float]) -> Projection:
    """The pinhole projection that puts `target_3` at `centre_px`, `pixels_per_m` large at its distance."""
    relative = vertices_V3 - target_3
    depth = relative[:, 1] + _CAMERA_DISTANCE_M
    scale = pixels_per_m * _CAMERA_DISTANCE_M / depth
    return Projection(np.stack([relative[:, 0], -relative[:, 2]], 1) * scale[:, None] + centre_px, depth)


def visible_triangles(view: Projection, triangles_T3: Indices, size_px: int) -> Indices:
    """Number of the triangle seen in each pixel (size, size), -1 where there is none.

    Painter's algorithm: triangles that face the camera are filled from the farthest to the nearest.
    """
    a, b, c = (view.pixels[triangles_T3[:, k]] for k in range(3))
    facing = np.flatnonzero(_cross(b - a, c - a) < 0)  # rows grow downwards: counter-clockwise turns negative
    order = facing[np.argsort(-view.depth[triangles_T3[facing]].mean(axis=1), kind="stable")]
    corners = np.round(view.pixels[triangles_T3] * (1 << _SUBPIXEL_BITS)).astype(np.int32)
    seen = np.full((size_px, size_px), -1, np.int32)
    for t in order:
        cv2.fillConvexPoly(seen, corners[t], int(t), lineType=cv2.LINE_8, shift=_SUBPIXEL_BITS)
    return seen


def _cross(first_N2: Floats, second_N2: Floats) -> Floats:
    result: Floats = first_N2[:, 0] * second_N2[:, 1] - first_N2[:, 1] * second_N2[:, 0]
    return result


def corner_weights(view: Projection, corners_N3: Indices, pixel_N2: Floats) -> Floats:
    """Barycentric weights (N, 3) of pixels in their triangles; pixels on the rim are pulled inside."""
    a, b, c = (view.pixels[corners_N3[:, k]] for k in range(3))
    area = _cross(b - a, c - a)
    second = _cross(pixel_N2 - a, c - a) / area
    third = _cross(b - a, pixel_N2 - a) / area
    weights = np.clip(np.stack([1 - second - third, second, third], axis=1), 0.0, 1.0)
    result: Floats = weights / weights.sum(axis=1, keepdims=True)
    return result


def pose(bust: Bust, vertices_V3: Floats, look: Look, image: ImageParameters) -> Floats:
    """Vertices with the look's hair volume, turned as the picture asks."""
    is_head = np.zeros(len(vertices_V3), dtype=bool)
    is_head[bust.triangles[bust.part == Part.HEAD]] = True
    cover = hair_share(bust.template, bust.ears, look.hairline_cm, _HAIR_FADE_CM) * is_head
    haired = raise_surface(vertices_V3, bust.triangles, cover * look.hair_depth_cm / 100)
    follow = _TORSO_FOLLOW + (1 - _TORSO_FOLLOW) * bust.follow
    vector = rotation_vector(image.yaw_rad, image.pitch_rad, image.roll_rad)
    return turn(haired, follow, vector, _neck(bust, vertices_V3))


def _neck(bust: Bust, vertices_V3: Floats) -> Floats:
    """The middle of the vertices that half follow the head: about the upper neck; the origin where there are none."""
    between = (bust.follow > 0.25) & (bust.follow < 0.75)
    return vertices_V3[between].mean(axis=0) if between.any() else np.zeros(3)


def _shade(bust: Bust, view: Projection, posed_V3: Floats, seen: Indices, look: Look, image: ImageParameters) -> Floats:
    """Linear light (N, 3) of the pixels where a triangle is seen, row by row."""
    rows, columns = np.nonzero(seen >= 0)
    triangle_N = seen[rows, columns]
    corners_N3 = bust.triangles[triangle_N]
    weights_N3 = corner_weights(view, corners_N3, np.stack([columns, rows], axis=1).astype(np.float64))

    def at_pixel(values: Floats) -> Floats:
        result: Floats = np.einsum("nk,nk...->n...", weights_N3, values[corners_N3])
        return result

    lips, ears, eyelids = (at_pixel(share) for share in (bust.lips, bust.ears, bust.eyelids))
    surface = Surface(bust.part[triangle_N], at_pixel(bust.template), lips, ears, eyelids)
    normals_N3 = at_pixel(vertex_normals(posed_V3, bust.triangles))
    normals_N3 /= np.maximum(np.linalg.norm(normals_N3, axis=1, keepdims=True), 1e-9)
    diffuse_N, gloss_N = _light(normals_N3, surface.part, image)
    return (albedo(surface, look) * diffuse_N[:, None] + gloss_N[:, None]) * image.exposure


def _light(normals_N3: Floats, part_N: NDArray[np.uint8], image: ImageParameters) -> tuple[Floats, Floats]:
    """Light of one direction and of the surroundings at each point: a factor on its colour, and added gloss."""
    left, forward, up = image.light
    towards = np.array((left, -forward, up))  # the model's y axis points backwards
    # Wrapped a little past the terminator, as light bleeds through skin.
    lit = np.clip((normals_N3 @ towards + 0.15) / 1.15, 0.0, 1.0)
    sky = 0.8 + 0.2 * normals_N3[:, 2]
    factor = image.ambient * sky + (1 - image.ambient) * 1.4 * lit
    factor = np.where(np.isin(part_N, (Part.EYE_SOCKET, Part.MOUTH)), 0.4 * factor, factor)
    halfway = np.array((left, -forward - 1.0, up))  # between light and camera (Blinn)
    gloss = np.clip(normals_N3 @ (halfway / np.linalg.norm(halfway)), 0.0, 1.0) ** 24
    glossy = np.select([part_N == Part.EYE, part_N == Part.HEAD], [0.25, 0.05], 0.0)
    return factor, gloss * glossy * (1 - image.ambient)


def draw(bust: Bust, vertices_V3: Floats, look: Look, image: ImageParameters, size_px: int = IMAGE_SIZE) -> Image:
    """The picture (size, size, 3), uint8 BGR, of vertices in metres, before the camera's faults."""
    posed = pose(bust, vertices_V3, look, image)
    large_px = size_px * _OVERSAMPLING
    is_head = np.unique(bust.triangles[bust.part != Part.BODY])
    head = vertices_V3[is_head] if len(is_head) else vertices_V3
    height_m = max(float(np.ptp(head[:, 2])), 1e-6)
    target = _middle(posed[is_head] if len(is_head) else posed)
    centre = (image.centre[0] * large_px, image.centre[1] * large_px)
    view = project(posed, target, image.head_height * large_px / height_m, centre)
    seen = visible_triangles(view, bust.triangles, large_px)
    canvas = _backdrop(image, large_px)
    canvas[seen >= 0] = _shade(bust, view, posed, seen, look, image)
    small = cv2.resize(canvas, (size_px, size_px), interpolation=cv2.INTER_AREA)
    encoded = np.clip(small, 0.0, 1.0) ** (1 / 2.2) * 255.0
    return np.asarray(np.round(encoded[:, :, ::-1]), dtype=np.uint8)


def _middle(points_N3: Floats) -> Floats:
    result: Floats = (points_N3.min(axis=0) + points_N3.max(axis=0)) / 2
    return result


def _backdrop(image: ImageParameters, size_px: int) -> Floats:
    share = np.linspace(0.0, 1.0, size_px)[:, None, None]
    top, bottom = (linear(colour) for colour in image.background)
    return np.broadcast_to(top + (bottom - top) * share, (size_px, size_px, 3)).copy()


def develop(picture: Image, image: ImageParameters) -> Image:
    """The picture as a camera would deliver it: white balance, blur and noise; same shape, uint8 BGR."""
    red, green, blue = image.white_balance
    values: Floats = picture.astype(np.float64) * (blue, green, red)
    if image.blur_px > 0:
        values = np.asarray(cv2.GaussianBlur(values, (0, 0), image.blur_px), dtype=np.float64)
    values += np.random.default_rng(image.noise_seed).normal(0.0, image.noise, picture.shape)
    return np.asarray(np.clip(np.round(values), 0, 255), dtype=np.uint8)


def encode_jpeg(picture: Image, quality: int) -> bytes:
    """The picture as a JPEG file, with chroma at half resolution as phones store it."""
    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:  # OpenCV reports failure by value; a uint8 BGR picture always encodes
        raise RuntimeError("OpenCV could not encode a picture as JPEG")
    return bytes(data)
