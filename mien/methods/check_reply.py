"""Form checks on a server's reply to a device's half, before anything is computed with it."""

from __future__ import annotations

import numpy as np

from mien.contribution import Arrays
from mien.errors import CorruptDataError
from mien.layout import Vector


def told(reply: Arrays, name: str, shape: tuple[int | None, ...]) -> Vector | None:
    """Return the finite array `name` of the server's reply, None where it is absent.

    A length of None is any from 1 on. Raises CorruptDataError that names the array and its right form.
    """
    values = reply.get(name)
    if values is None:
        return None
    fits = values.ndim == len(shape) and all(
        length == wanted or (wanted is None and length > 0) for length, wanted in zip(values.shape, shape, strict=True)
    )
    if not fits or values.dtype.kind != "f" or not np.isfinite(values).all():
        form = " x ".join("any number" if wanted is None else str(wanted) for wanted in shape)
        raise CorruptDataError(
            f"the server told {name!r} in another form than this task's, which is {form} finite numbers; leave the "
            "round, and tell the operator"
        )
    return values


def told_or_zeros(reply: Arrays, name: str, size: int) -> Vector:
    """Return the array `name` (size,) of the server's reply, zeros where it is absent; raises as `told`."""
    values = told(reply, name, (size,))
    return np.zeros(size, np.float32) if values is None else values
