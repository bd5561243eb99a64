"""Every error that Mien raises on purpose: one tree, one table.

::

    MienError
    ├── InputError                  what the user gave cannot be used: change it, then run again
    │   ├── ConfigError             unknown or wrong field in a TOML file or option: correct the named field
    │   ├── ImageError              file is not an image that can be decoded: replace or remove it
    │   ├── NoFaceError             no face found: take another picture, nearer and better lit
    │   ├── MultipleFacesError      more than one face: take a picture of one person, or crop it
    │   ├── LowQualityError         face found but not usable: follow the hints in `reasons`
    │   ├── EmptyFolderError        folder holds no images: name another folder
    │   ├── NotEnrolledError        nobody of that name in the gallery: enrol first
    │   ├── AlreadyExistsError      would overwrite: choose another name or remove the old one
    │   ├── NotFoundError           no task, model or device of that id: list them
    │   ├── UndefinedMetricError    protocol has too few or unusable scores: enlarge the test set
    │   └── MissingDependencyError  an extra is not installed: install the named extra
    ├── IntegrityError              bytes are not what their hash, layout or format says
    │   ├── CorruptDataError        damaged, truncated or tampered: fetch or create it again
    │   ├── LayoutMismatchError     parameters of another architecture or part: use the model that was assigned
    │   ├── ModelMismatchError      template or update belongs to another model version: re-embed or fetch the model
    │   └── NonFiniteError          NaN or infinity in an update or embedding: leave the round, check the data
    ├── AuthError                   identity or permission was not proved
    │   ├── InviteError             token unknown, used or expired: ask the operator for a new invite
    │   ├── FingerprintError        server is not the one that the invite names: do not join; ask the operator
    │   ├── CertificateError        expired, not yet valid or not ours: check the clock, then renew or join again
    │   ├── RevokedError            device was revoked: ask the operator
    │   └── PermissionDeniedError   role may not do this: use an operator's credentials
    ├── ProtocolError               the two sides do not agree on what comes next
    │   ├── VersionError            program too old or too new: upgrade
    │   ├── LateError               round or stage is over: nothing is lost, check in again
    │   ├── OffsetError             upload resumed at the wrong byte: ask for the status, go on from there
    │   ├── ReplayError             same step again with other bytes: abandon this round, check in again
    │   ├── CohortError             too few devices left for a sum that hides each: nothing was shown, check in again
    │   ├── ViolationError          the other side broke the rules of a private sum: leave the round, tell the operator
    │   ├── BudgetExceededError     privacy budget would be exceeded: nothing was shown; end the task, ask other devices
    │   └── TransparencyError       log of rounds lacks this one or shows two histories: stay out, keep the evidence
    ├── UnavailableError            works later, unchanged: retry
    │   ├── UnreachableError        no answer from the server: check address and network, retry
    │   ├── DrainingError           server is shutting down: retry after the pause it names
    │   └── RateLimitedError        too many calls: retry after the pause it names
    └── StorageError                disk or key store failed; what was stored before is unchanged
        ├── DiskFullError           no space left: free some, run again
        ├── FileAccessError         may not read or write a file, or the disk is read-only: see to owner, permissions
        ├── DatabaseError           database refused what it was told: a fault of the program; report it with the log
        └── KeyStoreError           key missing, unreadable or wrong: restore the key, or wipe and enrol again

Every leaf carries a stable `code` (its snake-case name), the gRPC status that it travels as and the exit code of a
program that it ends. `TABLE` is that mapping, used in both directions by `mien.protocol.status` and by every CLI.
Messages never hold biometric data, keys or tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final


class MienError(Exception):
    """Root of all errors that are raised on purpose; the message says what happened and what to do."""

    code: ClassVar[str] = "mien"

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InputError(MienError):
    """The user's input cannot be used."""


class ConfigError(InputError):
    """A field of a configuration is unknown or has a wrong value."""


class ImageError(InputError):
    """A file cannot be decoded as an image, or is too large."""


class NoFaceError(InputError):
    """No face was found in an image."""


class MultipleFacesError(InputError):
    """More than one face was found where one is needed."""


class LowQualityError(InputError):
    """A face was found but does not pass the quality gate; `reasons` says why."""

    def __init__(self, message: str, *, reasons: tuple[str, ...] = (), retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reasons = reasons


class EmptyFolderError(InputError):
    """A folder holds no images."""


class NotEnrolledError(InputError):
    """Nobody of that name is in the gallery."""


class AlreadyExistsError(InputError):
    """Going on would overwrite something that exists."""


class NotFoundError(InputError):
    """There is no task, model, device or file of that name."""


class UndefinedMetricError(InputError):
    """A metric is not defined or not measurable on these scores."""


class MissingDependencyError(InputError):
    """An optional dependency is not installed."""


class IntegrityError(MienError):
    """Bytes are not what their hash, layout or format says."""


class CorruptDataError(IntegrityError):
    """Data is damaged, truncated or was tampered with."""


class LayoutMismatchError(IntegrityError):
    """Parameters belong to another architecture or another trainable part."""


class ModelMismatchError(IntegrityError):
    """A template or update belongs to another version of the model."""


class NonFiniteError(IntegrityError):
    """An update, embedding or score holds NaN or infinity."""


class AuthError(MienError):
    """Identity or permission was not proved."""


class InviteError(AuthError):
    """An invite's token is unknown, used or expired."""


class FingerprintError(AuthError):
    """The server's certificate is not the one that the invite names."""


class CertificateError(AuthError):
    """A certificate is expired, not yet valid, or was not issued by the expected authority."""


class RevokedError(AuthError):
    """The device was revoked."""


class PermissionDeniedError(AuthError):
    """The caller's role may not do this."""


class ProtocolError(MienError):
    """The two sides do not agree on what comes next."""


class VersionError(ProtocolError):
    """The two programs speak different versions of the protocol."""


class LateError(ProtocolError):
    """The round or stage is over."""


class OffsetError(ProtocolError):
    """An upload was resumed at a byte that the server does not expect."""


class ReplayError(ProtocolError):
    """The same step was sent again with other bytes."""


class CohortError(ProtocolError):
    """Too few devices are left for a sum that hides each of them; nothing was released."""


class ViolationError(ProtocolError):
    """A message breaks the rules that keep a sum private."""


class BudgetExceededError(ProtocolError):
    """One more sum would tell more than the privacy budget permits; nothing was released."""


class TransparencyError(ProtocolError):
    """The log of rounds does not hold what it must, or shows two histories; nothing was trained."""


class UnavailableError(MienError):
    """The call can succeed later, unchanged."""


class UnreachableError(UnavailableError):
    """The server does not answer."""


class DrainingError(UnavailableError):
    """The server is shutting down and takes no new work."""


class RateLimitedError(UnavailableError):
    """The caller sends too many calls, or one too early.

    `is_expected` is True for what a caller asks too early because it cannot know better: no refusal to speak of.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None, is_expected: bool = False) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.is_expected = is_expected


class StorageError(MienError):
    """Disk or key store failed; what was stored before is unchanged."""


class DiskFullError(StorageError):
    """No space is left on the disk."""


class FileAccessError(StorageError):
    """A file or folder may not be read or written, or its disk is read-only."""


class DatabaseError(StorageError):
    """The database refused what the program told it."""


class KeyStoreError(StorageError):
    """A key is missing, unreadable or does not open what it should."""


@dataclass(frozen=True)
class ErrorRow:
    """One row of the table: how an error travels over gRPC and how it ends a program."""

    grpc_status: str
    exit_code: int


TABLE: Final[dict[type[MienError], ErrorRow]] = {
    ConfigError: ErrorRow("INVALID_ARGUMENT", 2),
    ImageError: ErrorRow("INVALID_ARGUMENT", 10),
    NoFaceError: ErrorRow("INVALID_ARGUMENT", 11),
    MultipleFacesError: ErrorRow("INVALID_ARGUMENT", 12),
    LowQualityError: ErrorRow("INVALID_ARGUMENT", 13),
    EmptyFolderError: ErrorRow("INVALID_ARGUMENT", 14),
    NotEnrolledError: ErrorRow("NOT_FOUND", 15),
    AlreadyExistsError: ErrorRow("ALREADY_EXISTS", 16),
    NotFoundError: ErrorRow("NOT_FOUND", 17),
    UndefinedMetricError: ErrorRow("FAILED_PRECONDITION", 18),
    MissingDependencyError: ErrorRow("UNIMPLEMENTED", 19),
    CorruptDataError: ErrorRow("DATA_LOSS", 20),
    LayoutMismatchError: ErrorRow("FAILED_PRECONDITION", 21),
    ModelMismatchError: ErrorRow("FAILED_PRECONDITION", 22),
    NonFiniteError: ErrorRow("INVALID_ARGUMENT", 23),
    InviteError: ErrorRow("UNAUTHENTICATED", 30),
    FingerprintError: ErrorRow("UNAUTHENTICATED", 31),
    CertificateError: ErrorRow("UNAUTHENTICATED", 32),
    RevokedError: ErrorRow("PERMISSION_DENIED", 33),
    PermissionDeniedError: ErrorRow("PERMISSION_DENIED", 34),
    VersionError: ErrorRow("FAILED_PRECONDITION", 40),
    LateError: ErrorRow("DEADLINE_EXCEEDED", 41),
    OffsetError: ErrorRow("OUT_OF_RANGE", 42),
    ReplayError: ErrorRow("ABORTED", 43),
    CohortError: ErrorRow("ABORTED", 44),
    ViolationError: ErrorRow("FAILED_PRECONDITION", 45),
    BudgetExceededError: ErrorRow("FAILED_PRECONDITION", 46),
    TransparencyError: ErrorRow("FAILED_PRECONDITION", 47),
    UnreachableError: ErrorRow("UNAVAILABLE", 50),
    DrainingError: ErrorRow("UNAVAILABLE", 51),
    RateLimitedError: ErrorRow("RESOURCE_EXHAUSTED", 52),
    DiskFullError: ErrorRow("RESOURCE_EXHAUSTED", 60),
    KeyStoreError: ErrorRow("INTERNAL", 61),
    DatabaseError: ErrorRow("INTERNAL", 62),
    FileAccessError: ErrorRow("INTERNAL", 63),
}

BY_CODE: Final[dict[str, type[MienError]]] = {cls.code: cls for cls in TABLE}
