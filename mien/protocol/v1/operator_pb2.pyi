from mien.protocol.v1 import common_pb2 as _common_pb2
from mien.protocol.v1 import models_pb2 as _models_pb2
from mien.protocol.v1 import rounds_pb2 as _rounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExamineRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExamineReply(_message.Message):
    __slots__ = ("settings_json", "checks", "instance")
    class ChecksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    settings_json: bytes
    checks: _containers.ScalarMap[str, str]
    instance: str
    def __init__(self, settings_json: _Optional[bytes] = ..., checks: _Optional[_Mapping[str, str]] = ..., instance: _Optional[str] = ...) -> None: ...

class SubmitTaskRequest(_message.Message):
    __slots__ = ("task_json", "idempotency_token")
    TASK_JSON_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    task_json: bytes
    idempotency_token: str
    def __init__(self, task_json: _Optional[bytes] = ..., idempotency_token: _Optional[str] = ...) -> None: ...

class TaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTasksReply(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStatus]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskStatus, _Mapping]]] = ...) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("task_id", "name", "state", "rounds_closed", "rounds_total", "model_id", "reason", "method", "reveals", "task_json", "num_cannot_train", "num_want_larger_sums", "gathering_there", "gathering_wanted", "gathering_since_unix_ms", "gathering_lacks_labelled", "num_used_up", "num_left_out")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REVEALS_FIELD_NUMBER: _ClassVar[int]
    TASK_JSON_FIELD_NUMBER: _ClassVar[int]
    NUM_CANNOT_TRAIN_FIELD_NUMBER: _ClassVar[int]
    NUM_WANT_LARGER_SUMS_FIELD_NUMBER: _ClassVar[int]
    GATHERING_THERE_FIELD_NUMBER: _ClassVar[int]
    GATHERING_WANTED_FIELD_NUMBER: _ClassVar[int]
    GATHERING_SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    GATHERING_LACKS_LABELLED_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_UP_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    name: str
    state: str
    rounds_closed: int
    rounds_total: int
    model_id: str
    reason: str
    method: str
    reveals: _containers.RepeatedScalarFieldContainer[str]
    task_json: bytes
    num_cannot_train: int
    num_want_larger_sums: int
    gathering_there: int
    gathering_wanted: int
    gathering_since_unix_ms: int
    gathering_lacks_labelled: int
    num_used_up: int
    num_left_out: int
    def __init__(self, task_id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., rounds_closed: _Optional[int] = ..., rounds_total: _Optional[int] = ..., model_id: _Optional[str] = ..., reason: _Optional[str] = ..., method: _Optional[str] = ..., reveals: _Optional[_Iterable[str]] = ..., task_json: _Optional[bytes] = ..., num_cannot_train: _Optional[int] = ..., num_want_larger_sums: _Optional[int] = ..., gathering_there: _Optional[int] = ..., gathering_wanted: _Optional[int] = ..., gathering_since_unix_ms: _Optional[int] = ..., gathering_lacks_labelled: _Optional[int] = ..., num_used_up: _Optional[int] = ..., num_left_out: _Optional[int] = ...) -> None: ...

class WatchTaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class TaskEvent(_message.Message):
    __slots__ = ("task", "round")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    task: TaskStatus
    round: RoundReport
    def __init__(self, task: _Optional[_Union[TaskStatus, _Mapping]] = ..., round: _Optional[_Union[RoundReport, _Mapping]] = ...) -> None: ...

class RoundReport(_message.Message):
    __slots__ = ("round", "stage", "num_selected", "num_trained", "num_reports", "started_unix_ms", "ended_unix_ms", "reason", "model_id", "upload_bytes", "metrics", "duty", "base_version")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_SELECTED_FIELD_NUMBER: _ClassVar[int]
    NUM_TRAINED_FIELD_NUMBER: _ClassVar[int]
    NUM_REPORTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    DUTY_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    round: _rounds_pb2.RoundRef
    stage: _rounds_pb2.Stage
    num_selected: int
    num_trained: int
    num_reports: int
    started_unix_ms: int
    ended_unix_ms: int
    reason: str
    model_id: str
    upload_bytes: int
    metrics: _containers.ScalarMap[str, float]
    duty: _rounds_pb2.Duty
    base_version: int
    def __init__(self, round: _Optional[_Union[_rounds_pb2.RoundRef, _Mapping]] = ..., stage: _Optional[_Union[_rounds_pb2.Stage, str]] = ..., num_selected: _Optional[int] = ..., num_trained: _Optional[int] = ..., num_reports: _Optional[int] = ..., started_unix_ms: _Optional[int] = ..., ended_unix_ms: _Optional[int] = ..., reason: _Optional[str] = ..., model_id: _Optional[str] = ..., upload_bytes: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., duty: _Optional[_Union[_rounds_pb2.Duty, str]] = ..., base_version: _Optional[int] = ...) -> None: ...

class ListSeenDevicesRequest(_message.Message):
    __slots__ = ("limit", "after_device_id")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after_device_id: str
    def __init__(self, limit: _Optional[int] = ..., after_device_id: _Optional[str] = ...) -> None: ...

class ListSeenDevicesReply(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[SeenDevice]
    def __init__(self, devices: _Optional[_Iterable[_Union[SeenDevice, _Mapping]]] = ...) -> None: ...

class CountSeenDevicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CountSeenDevicesReply(_message.Message):
    __slots__ = ("num_devices",)
    class NumDevicesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_DEVICES_FIELD_NUMBER: _ClassVar[int]
    num_devices: _containers.ScalarMap[str, int]
    def __init__(self, num_devices: _Optional[_Mapping[str, int]] = ...) -> None: ...

class SeenDevice(_message.Message):
    __slots__ = ("device_id", "population", "software", "first_seen_unix_ms", "last_seen_unix_ms", "stays_out_since_unix_ms", "engines", "backbones", "objectives", "labelled")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    STAYS_OUT_SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    BACKBONES_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    LABELLED_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    population: str
    software: str
    first_seen_unix_ms: int
    last_seen_unix_ms: int
    stays_out_since_unix_ms: int
    engines: _containers.RepeatedScalarFieldContainer[str]
    backbones: _containers.RepeatedScalarFieldContainer[str]
    objectives: _containers.RepeatedScalarFieldContainer[str]
    labelled: bool
    def __init__(self, device_id: _Optional[str] = ..., population: _Optional[str] = ..., software: _Optional[str] = ..., first_seen_unix_ms: _Optional[int] = ..., last_seen_unix_ms: _Optional[int] = ..., stays_out_since_unix_ms: _Optional[int] = ..., engines: _Optional[_Iterable[str]] = ..., backbones: _Optional[_Iterable[str]] = ..., objectives: _Optional[_Iterable[str]] = ..., labelled: _Optional[bool] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsReply(_message.Message):
    __slots__ = ("models", "statuses")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[_models_pb2.ModelManifest]
    statuses: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    def __init__(self, models: _Optional[_Iterable[_Union[_models_pb2.ModelManifest, _Mapping]]] = ..., statuses: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("model_id", "state", "share", "reason", "population", "task_id", "round", "removed")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    state: str
    share: float
    reason: str
    population: str
    task_id: str
    round: int
    removed: bool
    def __init__(self, model_id: _Optional[str] = ..., state: _Optional[str] = ..., share: _Optional[float] = ..., reason: _Optional[str] = ..., population: _Optional[str] = ..., task_id: _Optional[str] = ..., round: _Optional[int] = ..., removed: _Optional[bool] = ...) -> None: ...

class ReleaseModelRequest(_message.Message):
    __slots__ = ("model_id", "share", "despite_gates", "bundle_manifest", "bundle_signature", "roll_out_json")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    DESPITE_GATES_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ROLL_OUT_JSON_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    share: float
    despite_gates: bool
    bundle_manifest: bytes
    bundle_signature: bytes
    roll_out_json: bytes
    def __init__(self, model_id: _Optional[str] = ..., share: _Optional[float] = ..., despite_gates: _Optional[bool] = ..., bundle_manifest: _Optional[bytes] = ..., bundle_signature: _Optional[bytes] = ..., roll_out_json: _Optional[bytes] = ...) -> None: ...

class ListRollOutsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRollOutsReply(_message.Message):
    __slots__ = ("roll_outs",)
    ROLL_OUTS_FIELD_NUMBER: _ClassVar[int]
    roll_outs: _containers.RepeatedCompositeFieldContainer[RollOutStatus]
    def __init__(self, roll_outs: _Optional[_Iterable[_Union[RollOutStatus, _Mapping]]] = ...) -> None: ...

class RollOutRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class RollOutStatus(_message.Message):
    __slots__ = ("id", "model_id", "reference_model_id", "population", "state", "reason", "share", "stage", "stages", "task_id", "figures", "started_unix_ms", "started_by", "changed_unix_ms", "roll_out_json")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_BY_FIELD_NUMBER: _ClassVar[int]
    CHANGED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ROLL_OUT_JSON_FIELD_NUMBER: _ClassVar[int]
    id: int
    model_id: str
    reference_model_id: str
    population: str
    state: str
    reason: str
    share: float
    stage: int
    stages: _containers.RepeatedScalarFieldContainer[float]
    task_id: str
    figures: _containers.ScalarMap[str, float]
    started_unix_ms: int
    started_by: str
    changed_unix_ms: int
    roll_out_json: bytes
    def __init__(self, id: _Optional[int] = ..., model_id: _Optional[str] = ..., reference_model_id: _Optional[str] = ..., population: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., share: _Optional[float] = ..., stage: _Optional[int] = ..., stages: _Optional[_Iterable[float]] = ..., task_id: _Optional[str] = ..., figures: _Optional[_Mapping[str, float]] = ..., started_unix_ms: _Optional[int] = ..., started_by: _Optional[str] = ..., changed_unix_ms: _Optional[int] = ..., roll_out_json: _Optional[bytes] = ...) -> None: ...

class RollBackRequest(_message.Message):
    __slots__ = ("population",)
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    population: str
    def __init__(self, population: _Optional[str] = ...) -> None: ...

class AddEvaluationRequest(_message.Message):
    __slots__ = ("model_id", "record_json")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_JSON_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    record_json: bytes
    def __init__(self, model_id: _Optional[str] = ..., record_json: _Optional[bytes] = ...) -> None: ...

class AddEvaluationReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEvaluationsRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class ListEvaluationsReply(_message.Message):
    __slots__ = ("record_json",)
    RECORD_JSON_FIELD_NUMBER: _ClassVar[int]
    record_json: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, record_json: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ImportModelHeader(_message.Message):
    __slots__ = ("spec_json", "theta", "public_shard")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    THETA_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_SHARD_FIELD_NUMBER: _ClassVar[int]
    spec_json: bytes
    theta: _common_pb2.BlobRef
    public_shard: _common_pb2.BlobRef
    def __init__(self, spec_json: _Optional[bytes] = ..., theta: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ..., public_shard: _Optional[_Union[_common_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class ImportModelChunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: ImportModelHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[ImportModelHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class AddGraphsHeader(_message.Message):
    __slots__ = ("bundle_manifest", "bundle_signature")
    BUNDLE_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    bundle_manifest: bytes
    bundle_signature: bytes
    def __init__(self, bundle_manifest: _Optional[bytes] = ..., bundle_signature: _Optional[bytes] = ...) -> None: ...

class AddGraphsChunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: AddGraphsHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[AddGraphsHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class AddGraphsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddThresholdRequest(_message.Message):
    __slots__ = ("model_id", "threshold_json")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_JSON_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    threshold_json: bytes
    def __init__(self, model_id: _Optional[str] = ..., threshold_json: _Optional[bytes] = ...) -> None: ...

class SetThresholdsRequest(_message.Message):
    __slots__ = ("model_id", "thresholds_json", "groups_json", "in_addition")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    THRESHOLDS_JSON_FIELD_NUMBER: _ClassVar[int]
    GROUPS_JSON_FIELD_NUMBER: _ClassVar[int]
    IN_ADDITION_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    thresholds_json: bytes
    groups_json: bytes
    in_addition: bool
    def __init__(self, model_id: _Optional[str] = ..., thresholds_json: _Optional[bytes] = ..., groups_json: _Optional[bytes] = ..., in_addition: _Optional[bool] = ...) -> None: ...
