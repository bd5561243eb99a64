"""The face model itself: vertices from parameters, through the package `anny` (the extra `[synthetic]`)."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mien.errors import CorruptDataError, MissingDependencyError
from simulation.synthetic.bust import Bust, Part
from simulation.synthetic.geometry import Floats, Indices
from simulation.synthetic.parameters import (
    FACIAL_ACTIONS,
    IdentityParameters,
    ImageParameters,
    shape_slider_names,
)

if TYPE_CHECKING:
    import torch

_LOWEST_M: Final = -0.42  # template triangles below this height under the pupils are never in a picture
_WIDEST_M: Final = 0.32  # nor are arms farther out than this
_NECK_FOLLOW: Final = {"neck01": 0.2, "neck02": 0.5, "neck03": 0.8, "head": 1.0, "eye.L": 1.0, "eye.R": 1.0}
_PART_OF_REGION: Final = {
    "head": Part.HEAD,
    "eye_front.L": Part.EYE,
    "eye_back.L": Part.EYE,
    "eye_front.R": Part.EYE,
    "eye_back.R": Part.EYE,
    "eye_cavity.L": Part.EYE_SOCKET,
    "eye_cavity.R": Part.EYE_SOCKET,
    "mouth_cavity": Part.MOUTH,
    "tongue": Part.TONGUE,
}


def load_anny() -> Any:
    """The module `anny`. Raises MissingDependencyError where the extra is not installed."""
    missing = [name for name in ("torch", "anny") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"drawing new synthetic faces needs {' and '.join(missing)}, not installed here; "
            "run: pip install '.[synthetic]' in Mien's folder (the committed faces need neither)"
        )
    return importlib.import_module("anny")


class FaceModel:
    """Vertices of head, neck and shoulders for an identity and an expression.

    The first use parses the model's assets: about a minute and 1.5 GB of cache (ANNY_CACHE_DIR, else the user's cache
    folder); later starts take seconds. Raises MissingDependencyError without the extra `[synthetic]`.
    """

    def __init__(self) -> None:
        anny = load_anny()
        with warnings.catch_warnings():
            # Without warp-lang, which is not needed, the model says that it skins with plain torch.
            warnings.filterwarnings("ignore", message="Fallback to lbs skinning", category=UserWarning)
            self._model = anny.Anny(
                local_changes=shape_slider_names(), facial_actions=list(FACIAL_ACTIONS), phenotypes="all"
            )
        template = self._vertices_of(self._model())
        triangles = self._model.faces.numpy().astype(np.int32)
        parts = self._parts(anny, len(triangles))
        eyes = template[np.unique(triangles[parts == Part.EYE])]
        self._between_pupils = np.array([0.0, eyes[:, 1].min(), eyes[:, 2].mean()])
        self._keep_V, self.bust = self._cut(template - self._between_pupils, triangles, parts)

    def vertices(self, identity: IdentityParameters, image: ImageParameters) -> Floats:
        """Vertices (V, 3) in metres, in the order of `bust`, head upright: `render.pose` turns it."""
        output = self._model(
            phenotype_kwargs=dict(identity.phenotype),
            local_changes_kwargs=dict(identity.shape),
            facial_actions=dict(image.actions),
        )
        kept: Floats = self._vertices_of(output)[self._keep_V] - self._between_pupils
        return kept

    @staticmethod
    def _vertices_of(output: dict[str, torch.Tensor]) -> Floats:
        return output["vertices"][0].detach().numpy().astype(np.float64)

    def _parts(self, anny: Any, count: int) -> NDArray[np.uint8]:
        segmentation = importlib.import_module("anny.face_segmentation")
        parts = np.full(count, Part.BODY, np.uint8)
        for region, part in _PART_OF_REGION.items():
            parts[segmentation.get_face_segmentation_mask(self._model, [region]).numpy()] = part
        return parts

    def _cut(self, template_m: Floats, triangles: Indices, parts: NDArray[np.uint8]) -> tuple[Indices, Bust]:
        corners = template_m[triangles]
        kept = (corners[:, :, 2].min(axis=1) > _LOWEST_M) & (np.abs(corners[:, :, 0]).max(axis=1) < _WIDEST_M)
        used, renumbered = np.unique(triangles[kept], return_inverse=True)
        is_head = np.zeros(len(template_m), dtype=bool)
        is_head[triangles[parts == Part.HEAD]] = True
        lips, ears, eyelids = (self._mask(name) * is_head for name in ("lips", "ears", "eyelids"))
        bust = Bust(
            triangles=renumbered.reshape(-1, 3).astype(np.int32),
            part=parts[kept],
            template=template_m[used] * (100.0, -100.0, 100.0),
            follow=self._follow()[used],
            lips=lips[used],
            ears=ears[used],
            eyelids=eyelids[used],
        )
        return used.astype(np.int32), bust

    def _follow(self) -> Floats:
        share_of_bone = np.array([_NECK_FOLLOW.get(name, 0.0) for name in self._model.bone_labels])
        weights = self._model.vertex_bone_weights.numpy()
        follow: Floats = (share_of_bone[self._model.vertex_bone_indices.numpy()] * weights).sum(axis=1)
        return np.clip(follow, 0.0, 1.0)

    def _mask(self, name: str) -> Floats:
        """The share (V,) that the model's own texture mask of that name gives to each vertex."""
        root = Path(importlib.import_module("anny.paths").get_anny_root_dir())
        texture = cv2.imread(str(root / "data/mpfb2/textures" / f"mpfb_{name}.jpg"), cv2.IMREAD_GRAYSCALE)
        if texture is None:
            raise CorruptDataError(
                f"the installed anny has no texture mask {name!r}; repip install '.[synthetic]' in Mien's folder"
            )
        coordinates = self._model.texture_coordinates.numpy()
        of_vertex = np.zeros((len(self._model.template_vertices), 2))
        of_vertex[self._model.faces.numpy().ravel()] = coordinates[
            self._model.face_texture_coordinate_indices.numpy().ravel()
        ]
        size = np.array(texture.shape[::-1]) - 1
        column, row = np.round(np.clip([of_vertex[:, 0], 1 - of_vertex[:, 1]], 0, 1) * size[:, None]).astype(int)
        share: Floats = texture[row, column] / 255.0
        return share
