"""Formats between processes: generated stubs (v1), canonical JSON, tensors, invites, errors as gRPC status."""

from typing import Final

PROTOCOL_VERSIONS: Final = (1,)
"""Protocol versions that this program speaks, newest first."""

CHUNK_BYTES: Final = 256 * 1024
"""Size of one piece of a blob on the wire."""

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""Limit of one gRPC message; everything larger is streamed in chunks."""
