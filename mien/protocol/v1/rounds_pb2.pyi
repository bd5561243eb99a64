from mien.protocol.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    SELECTING: _ClassVar[Stage]
    TRAINING: _ClassVar[Stage]
    KEYS: _ClassVar[Stage]
    SHARES: _ClassVar[Stage]
    UPLOAD: _ClassVar[Stage]
    CONSISTENCY: _ClassVar[Stage]
    UNMASK: _ClassVar[Stage]
    CLOSED: _ClassVar[Stage]
    ABORTED: _ClassVar[Stage]
    CLOSING: _ClassVar[Stage]

class Duty(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAIN: _ClassVar[Duty]
    VALIDATE: _ClassVar[Duty]
STAGE_UNSPECIFIED: Stage
SELECTING: Stage
TRAINING: Stage
KEYS: Stage
SHARES: Stage
UPLOAD: Stage
CONSISTENCY: Stage
UNMASK: Stage
CLOSED: Stage
ABORTED: Stage
CLOSING: Stage
TRAIN: Duty
VALIDATE: Duty

class RoundRef(_message.Message):
    __slots__ = ("task_id", "round", "attempt")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    round: int
    attempt: int
    def __init__(self, task_id: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class CheckInRequest(_message.Message):
    __slots__ = ("population", "software", "backbones", "min_cohort", "duty", "methods", "engines", "parts", "labelled", "used_up_models", "used_up_day")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    BACKBONES_FIELD_NUMBER: _ClassVar[int]
    MIN_COHORT_FIELD_NUMBER: _ClassVar[int]
    DUTY_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    LABELLED_FIELD_NUMBER: _ClassVar[int]
    USED_UP_MODELS_FIELD_NUMBER: _ClassVar[int]
    USED_UP_DAY_FIELD_NUMBER: _ClassVar[int]
    population: str
    software: str
    backbones: _containers.RepeatedScalarFieldContainer[str]
    min_cohort: int
    duty: Duty
    methods: _containers.RepeatedScalarFieldContainer[str]
    engines: _containers.RepeatedScalarFieldContainer[str]
    parts: _containers.RepeatedCompositeFieldContainer[TrainablePart]
    labelled: bool
    used_up_models: _containers.RepeatedScalarFieldContainer[str]
    used_up_day: bool
    def __init__(self, population: _Optional[str] = ..., software: _Optional[str] = ..., backbones: _Optional[_Iterable[str]] = ..., min_cohort: _Optional[int] = ..., duty: _Optional[_Union[Duty, str]] = ..., methods: _Optional[_Iterable[str]] = ..., engines: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[_Union[TrainablePart, _Mapping]]] = ..., labelled: _Optional[bool] = ..., used_up_models: _Optional[_Iterable[str]] = ..., used_up_day: _Optional[bool] = ...) -> None: ...

class TrainablePart(_message.Message):
    __slots__ = ("sha256", "objectives")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    objectives: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sha256: _Optional[str] = ..., objectives: _Optional[_Iterable[str]] = ...) -> None: ...

class SetParticipationRequest(_message.Message):
    __slots__ = ("stays_out", "software")
    STAYS_OUT_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    stays_out: bool
    software: str
    def __init__(self, stays_out: _Optional[bool] = ..., software: _Optional[str] = ...) -> None: ...

class SetParticipationReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckInReply(_message.Message):
    __slots__ = ("assignment", "wait", "owner_address")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    OWNER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    wait: Wait
    owner_address: str
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., owner_address: _Optional[str] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("retry_after_s", "reason", "cannot_train")
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CANNOT_TRAIN_FIELD_NUMBER: _ClassVar[int]
    retry_after_s: float
    reason: str
    cannot_train: bool
    def __init__(self, retry_after_s: _Optional[float] = ..., reason: _Optional[str] = ..., cannot_train: _Optional[bool] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("round", "task_json", "model_id", "contribution_sha256", "reply", "stage", "deadline_unix_ms", "duty", "reply_stream")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TASK_JSON_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_SHA256_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DUTY_FIELD_NUMBER: _ClassVar[int]
    REPLY_STREAM_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    task_json: bytes
    model_id: str
    contribution_sha256: str
    reply: bytes
    stage: Stage
    deadline_unix_ms: int
    duty: Duty
    reply_stream: _common_pb2.BlobRef
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ..., task_json: _Optional[bytes] = ..., model_id: _Optional[str] = ..., contribution_sha256: _Optional[str] = ..., reply: _Optional[bytes] = ..., stage: _Optional[_Union[Stage, str]] = ..., deadline_unix_ms: _Optional[int] = ..., duty: _Optional[_Union[Duty, str]] = ..., reply_stream: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class FollowRoundRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ...) -> None: ...

class StageEvent(_message.Message):
    __slots__ = ("round", "stage", "deadline_unix_ms", "remaining_ms", "reason", "model_id", "num_reports", "message")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_REPORTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    stage: Stage
    deadline_unix_ms: int
    remaining_ms: int
    reason: str
    model_id: str
    num_reports: int
    message: bytes
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ..., stage: _Optional[_Union[Stage, str]] = ..., deadline_unix_ms: _Optional[int] = ..., remaining_ms: _Optional[int] = ..., reason: _Optional[str] = ..., model_id: _Optional[str] = ..., num_reports: _Optional[int] = ..., message: _Optional[bytes] = ...) -> None: ...

class SendStepRequest(_message.Message):
    __slots__ = ("round", "stage", "message")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    stage: Stage
    message: bytes
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ..., stage: _Optional[_Union[Stage, str]] = ..., message: _Optional[bytes] = ...) -> None: ...

class SendStepReply(_message.Message):
    __slots__ = ("stage",)
    STAGE_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ...) -> None: ...

class ReportTrainedRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ...) -> None: ...

class ReportTrainedReply(_message.Message):
    __slots__ = ("stage",)
    STAGE_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ...) -> None: ...

class UploadStatusRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ...) -> None: ...

class UploadStatus(_message.Message):
    __slots__ = ("received_bytes", "accepted")
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    accepted: bool
    def __init__(self, received_bytes: _Optional[int] = ..., accepted: _Optional[bool] = ...) -> None: ...

class UploadChunk(_message.Message):
    __slots__ = ("header", "offset", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: UploadHeader
    offset: int
    data: bytes
    def __init__(self, header: _Optional[_Union[UploadHeader, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadHeader(_message.Message):
    __slots__ = ("round", "contribution", "masked")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    contribution: _common_pb2.BlobRef
    masked: bytes
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ..., contribution: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., masked: _Optional[bytes] = ...) -> None: ...

class DownloadReplyRequest(_message.Message):
    __slots__ = ("round", "sha256", "offset")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    sha256: str
    offset: int
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ..., sha256: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ProveRoundRequest(_message.Message):
    __slots__ = ("round", "first_size")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FIRST_SIZE_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    first_size: int
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ..., first_size: _Optional[int] = ...) -> None: ...

class ProveRoundReply(_message.Message):
    __slots__ = ("checkpoint", "log_key", "position", "inclusion", "consistency", "entry")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LOG_KEY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INCLUSION_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    log_key: bytes
    position: int
    inclusion: _containers.RepeatedScalarFieldContainer[bytes]
    consistency: _containers.RepeatedScalarFieldContainer[bytes]
    entry: bytes
    def __init__(self, checkpoint: _Optional[str] = ..., log_key: _Optional[bytes] = ..., position: _Optional[int] = ..., inclusion: _Optional[_Iterable[bytes]] = ..., consistency: _Optional[_Iterable[bytes]] = ..., entry: _Optional[bytes] = ...) -> None: ...

class ProveReleaseRequest(_message.Message):
    __slots__ = ("model_id", "first_size")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_SIZE_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    first_size: int
    def __init__(self, model_id: _Optional[str] = ..., first_size: _Optional[int] = ...) -> None: ...

class DownloadRevocationsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRoundRequest(_message.Message):
    __slots__ = ("round", "error_code")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    round: RoundRef
    error_code: str
    def __init__(self, round: _Optional[_Union[RoundRef, _Mapping]] = ..., error_code: _Optional[str] = ...) -> None: ...

class LeaveRoundReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
