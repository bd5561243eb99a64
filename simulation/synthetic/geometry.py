"""Pure geometry of a triangle mesh: normals, head turns and hair volume. Lengths in metres, angles in radians.

Axes as in the face model: x to the person's left, y backwards (the face looks along -y), z up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int32]


def vertex_normals(vertices_V3: Floats, triangles_T3: Indices) -> Floats:
    """Unit normals (V, 3), averaged over the triangles around each vertex by their area; zero for a lone vertex."""
    a, b, c = (vertices_V3[triangles_T3[:, k]] for k in range(3))
    face_normals = np.cross(b - a, c - a)  # length is twice the area, which weights the mean
    total = np.zeros_like(vertices_V3)
    for k in range(3):
        np.add.at(total, triangles_T3[:, k], face_normals)
    length = np.linalg.norm(total, axis=1, keepdims=True)
    unit: Floats = np.divide(total, length, out=np.zeros_like(total), where=length > 0)
    return unit


def rotation_vector(yaw_rad: float, pitch_rad: float, roll_rad: float) -> Floats:
    """Axis times angle (3,) of: roll about the view axis, then pitch (positive looks down), then yaw (to the left)."""
    yaw, pitch, roll = (
        _rodrigues(np.array([axis]) * angle)[0]
        for axis, angle in (
            ((0.0, 0.0, 1.0), yaw_rad),
            ((1.0, 0.0, 0.0), pitch_rad),
            ((0.0, 1.0, 0.0), roll_rad),
        )
    )
    matrix = yaw @ pitch @ roll
    angle = float(np.arccos(np.clip((np.trace(matrix) - 1) / 2, -1.0, 1.0)))
    if angle < 1e-12:
        return np.zeros(3)
    axis = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]])
    result: Floats = axis / (2 * np.sin(angle)) * angle
    return result


def _rodrigues(vectors_N3: Floats) -> Floats:
    """Rotation matrices (N, 3, 3) of rotation vectors (Rodrigues' formula)."""
    angle = np.linalg.norm(vectors_N3, axis=1)[:, None, None]
    unit = vectors_N3 / np.maximum(angle[:, 0], 1e-12)
    x, y, z = unit.T
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=1).reshape(-1, 3, 3)
    result: Floats = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)
    return result


def turn(vertices_V3: Floats, follow_V: Floats, vector_3: Floats, pivot_3: Floats) -> Floats:
    """Vertices after a turn about `pivot_3`, each by the share `follow_V` (0..1) of the rotation vector.

    The head follows wholly, the torso a little, and the neck twists evenly between them.
    """
    matrices = _rodrigues(follow_V[:, None] * vector_3[None, :])
    turned: Floats = np.einsum("vij,vj->vi", matrices, vertices_V3 - pivot_3) + pivot_3
    return turned


def raise_surface(vertices_V3: Floats, triangles_T3: Indices, height_V: Floats) -> Floats:
    """Vertices moved out along their normals by `height_V` metres: the volume of hair over the scalp."""
    return vertices_V3 + vertex_normals(vertices_V3, triangles_T3) * height_V[:, None]
