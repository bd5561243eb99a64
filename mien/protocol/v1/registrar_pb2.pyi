from mien.protocol.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("token", "csr_der", "attestation_chain_der")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CSR_DER_FIELD_NUMBER: _ClassVar[int]
    ATTESTATION_CHAIN_DER_FIELD_NUMBER: _ClassVar[int]
    token: str
    csr_der: bytes
    attestation_chain_der: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, token: _Optional[str] = ..., csr_der: _Optional[bytes] = ..., attestation_chain_der: _Optional[_Iterable[bytes]] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("device_id", "certificate_der", "registrar_ca_der", "coordinator_ca_der", "coordinator_address", "population", "release_key", "witness_key", "further_witness_keys", "further_witnesses_needed")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_DER_FIELD_NUMBER: _ClassVar[int]
    REGISTRAR_CA_DER_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_CA_DER_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_KEY_FIELD_NUMBER: _ClassVar[int]
    WITNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    FURTHER_WITNESS_KEYS_FIELD_NUMBER: _ClassVar[int]
    FURTHER_WITNESSES_NEEDED_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    certificate_der: bytes
    registrar_ca_der: bytes
    coordinator_ca_der: bytes
    coordinator_address: str
    population: str
    release_key: str
    witness_key: str
    further_witness_keys: _containers.RepeatedScalarFieldContainer[str]
    further_witnesses_needed: int
    def __init__(self, device_id: _Optional[str] = ..., certificate_der: _Optional[bytes] = ..., registrar_ca_der: _Optional[bytes] = ..., coordinator_ca_der: _Optional[bytes] = ..., coordinator_address: _Optional[str] = ..., population: _Optional[str] = ..., release_key: _Optional[str] = ..., witness_key: _Optional[str] = ..., further_witness_keys: _Optional[_Iterable[str]] = ..., further_witnesses_needed: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("certificate_der", "csr_der", "signature", "unix_ms")
    CERTIFICATE_DER_FIELD_NUMBER: _ClassVar[int]
    CSR_DER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    certificate_der: bytes
    csr_der: bytes
    signature: bytes
    unix_ms: int
    def __init__(self, certificate_der: _Optional[bytes] = ..., csr_der: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., unix_ms: _Optional[int] = ...) -> None: ...

class CosignRequest(_message.Message):
    __slots__ = ("checkpoint", "log_key", "log_key_signature", "old_size", "consistency", "certificates_after")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LOG_KEY_FIELD_NUMBER: _ClassVar[int]
    LOG_KEY_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_AFTER_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    log_key: bytes
    log_key_signature: bytes
    old_size: int
    consistency: _containers.RepeatedScalarFieldContainer[bytes]
    certificates_after: int
    def __init__(self, checkpoint: _Optional[str] = ..., log_key: _Optional[bytes] = ..., log_key_signature: _Optional[bytes] = ..., old_size: _Optional[int] = ..., consistency: _Optional[_Iterable[bytes]] = ..., certificates_after: _Optional[int] = ...) -> None: ...

class CosignReply(_message.Message):
    __slots__ = ("cosigned", "size", "certificates", "certificates_after")
    COSIGNED_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_AFTER_FIELD_NUMBER: _ClassVar[int]
    cosigned: str
    size: int
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    certificates_after: int
    def __init__(self, cosigned: _Optional[str] = ..., size: _Optional[int] = ..., certificates: _Optional[_Iterable[bytes]] = ..., certificates_after: _Optional[int] = ...) -> None: ...

class GetRevocationsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRevocationsReply(_message.Message):
    __slots__ = ("crl_der",)
    CRL_DER_FIELD_NUMBER: _ClassVar[int]
    crl_der: bytes
    def __init__(self, crl_der: _Optional[bytes] = ...) -> None: ...

class CreateInviteRequest(_message.Message):
    __slots__ = ("population", "valid_s", "note")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    population: str
    valid_s: int
    note: str
    def __init__(self, population: _Optional[str] = ..., valid_s: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class CreateInviteReply(_message.Message):
    __slots__ = ("url", "expires_unix_s")
    URL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    url: str
    expires_unix_s: int
    def __init__(self, url: _Optional[str] = ..., expires_unix_s: _Optional[int] = ...) -> None: ...

class RevokeDeviceRequest(_message.Message):
    __slots__ = ("device_id", "reason")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    reason: str
    def __init__(self, device_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RevokeDeviceReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ("limit", "after_device_id")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after_device_id: str
    def __init__(self, limit: _Optional[int] = ..., after_device_id: _Optional[str] = ...) -> None: ...

class ListDevicesReply(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceRecord]
    def __init__(self, devices: _Optional[_Iterable[_Union[DeviceRecord, _Mapping]]] = ...) -> None: ...

class DeviceRecord(_message.Message):
    __slots__ = ("device_id", "population", "joined_unix_s", "certificate_expires_unix_s", "revoked", "note", "attestation")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    JOINED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ATTESTATION_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    population: str
    joined_unix_s: int
    certificate_expires_unix_s: int
    revoked: bool
    note: str
    attestation: str
    def __init__(self, device_id: _Optional[str] = ..., population: _Optional[str] = ..., joined_unix_s: _Optional[int] = ..., certificate_expires_unix_s: _Optional[int] = ..., revoked: _Optional[bool] = ..., note: _Optional[str] = ..., attestation: _Optional[str] = ...) -> None: ...
