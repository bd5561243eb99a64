from mien.protocol.v1 import common_pb2 as _common_pb2
from mien.protocol.v1 import rounds_pb2 as _rounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindUploadRequest(_message.Message):
    __slots__ = ("device_id", "round")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    round: _rounds_pb2.RoundRef
    def __init__(self, device_id: _Optional[str] = ..., round: _Optional[_Union[_rounds_pb2.RoundRef, _Mapping]] = ...) -> None: ...

class FindUploadReply(_message.Message):
    __slots__ = ("round_id", "stage", "step", "upload_bytes")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    round_id: int
    stage: str
    step: str
    upload_bytes: int
    def __init__(self, round_id: _Optional[int] = ..., stage: _Optional[str] = ..., step: _Optional[str] = ..., upload_bytes: _Optional[int] = ...) -> None: ...

class PostUploadRequest(_message.Message):
    __slots__ = ("device_id", "round", "round_id", "error_code", "masked")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    round: _rounds_pb2.RoundRef
    round_id: int
    error_code: str
    masked: bytes
    def __init__(self, device_id: _Optional[str] = ..., round: _Optional[_Union[_rounds_pb2.RoundRef, _Mapping]] = ..., round_id: _Optional[int] = ..., error_code: _Optional[str] = ..., masked: _Optional[bytes] = ...) -> None: ...

class PostUploadReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SumRequest(_message.Message):
    __slots__ = ("round_id", "device_ids", "length", "ring_bits")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    RING_BITS_FIELD_NUMBER: _ClassVar[int]
    round_id: int
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    length: int
    ring_bits: int
    def __init__(self, round_id: _Optional[int] = ..., device_ids: _Optional[_Iterable[str]] = ..., length: _Optional[int] = ..., ring_bits: _Optional[int] = ...) -> None: ...
