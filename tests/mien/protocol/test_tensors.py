"""Named tensors come back as they went in."""

from __future__ import annotations

import numpy as np
import pytest

from mien.errors import CorruptDataError
from mien.protocol.tensors import pack_tensors, unpack_metadata, unpack_tensors


def test_tensors_keep_their_shapes_types_and_values() -> None:
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    told = {
        "number": np.array(7.5),
        "count": np.array(3, np.int64),
        "none": np.zeros((0, 4), np.float32),
        "turned": grid.T,
        "thinned": grid[:, ::2],
    }
    data = pack_tensors(told, {"facts": "a"})
    found = unpack_tensors(data, what="a blob")
    assert found.keys() == told.keys()
    for name, tensor in told.items():
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype), name
        assert np.array_equal(found[name], tensor), name
    assert unpack_metadata(data) == {"facts": "a"}


def test_a_damaged_blob_is_named() -> None:
    data = pack_tensors({"number": np.array(7.5)})
    with pytest.raises(CorruptDataError, match="a blob is damaged"):
        unpack_tensors(data[:-1], what="a blob")


def test_metadata_that_is_null_is_none() -> None:
    """The library takes it, as a coordinator's public faces may have it."""
    header = b'{"__metadata__":null,"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    header += b" " * (-len(header) % 8)
    data = len(header).to_bytes(8, "little") + header + b"7"
    assert unpack_tensors(data, what="it")["x"].tolist() == [ord("7")]
    assert unpack_metadata(data) == {}
