from mien.protocol.v1 import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetManifestRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class ModelManifest(_message.Message):
    __slots__ = ("model_id", "spec_json", "theta", "public_shard", "parent_model_id", "created_unix_s", "released", "changes", "bundle_manifest", "bundle_signature")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    THETA_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_SHARD_FIELD_NUMBER: _ClassVar[int]
    PARENT_MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    spec_json: bytes
    theta: _common_pb2.BlobRef
    public_shard: _common_pb2.BlobRef
    parent_model_id: str
    created_unix_s: int
    released: bool
    changes: _common_pb2.BlobRef
    bundle_manifest: bytes
    bundle_signature: bytes
    def __init__(self, model_id: _Optional[str] = ..., spec_json: _Optional[bytes] = ..., theta: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., public_shard: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., parent_model_id: _Optional[str] = ..., created_unix_s: _Optional[int] = ..., released: _Optional[bool] = ..., changes: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., bundle_manifest: _Optional[bytes] = ..., bundle_signature: _Optional[bytes] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...
