"""An operator's calls to a coordinator over mutual TLS, in the words of the domain."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from coordinator.keys import pki
from coordinator.keys.credentials import OperatorCredentials
from coordinator.keys.tls import who_answers
from coordinator.operator.sending import sent
from mien.errors import CertificateError, CorruptDataError, FileAccessError, NotFoundError, UnreachableError
from mien.models import bundles
from mien.protocol import CHUNK_BYTES, PROTOCOL_VERSIONS
from mien.protocol.canonical import parse_json, task_to_json, to_canonical_json
from mien.protocol.status import from_rpc_error, is_ours
from mien.protocol.v1 import common_pb2, models_pb2, models_pb2_grpc, operator_pb2, operator_pb2_grpc
from mien.records import to_mapping
from mien.shell.doing import doing
from mien.shell.files import storage_errors
from mien.specs import GroupRate, TaskSpec, Threshold

if TYPE_CHECKING:
    from mien.evaluation.rollout_spec import RollOutSpec

TIMEOUT_S: Final = 30.0
_TRANSFER_TIMEOUT_S: Final = 3600.0
_MAX_REPLY_BYTES: Final = 64 * 1024**2

_T = TypeVar("_T")


@dataclass(frozen=True)
class Examined:
    """A running coordinator as it sees itself: its settings by name, and its needs, each with what is wrong or empty.

    Passwords in the settings' URLs are masked. `instance` is another one for every process, empty of an older program.
    """

    settings: Mapping[str, Any] = field(repr=False)
    checks: Mapping[str, str]
    instance: str = ""

    @property
    def problems(self) -> str:
        """What keeps it from taking devices, in words; empty for nothing."""
        return "; ".join(f"{name}: {told}" for name, told in self.checks.items() if told)


class Coordinator:
    """An operator's calls; see `connect`. Every call raises a MienError when it fails.

    What is sent as a stream goes over the channel `sending`, the rest over `channel`.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        sending: grpc.Channel,
        address: str,
        credentials: OperatorCredentials,
        named: str = "",
    ) -> None:
        self._operator = operator_pb2_grpc.OperatorStub(channel)
        self._sending = operator_pb2_grpc.OperatorStub(sending)
        self._models = models_pb2_grpc.ModelsStub(channel)
        self._address, self._credentials, self._named = address, credentials, named

    async def hello(self) -> common_pb2.HelloReply:
        """Return the coordinator's greeting: protocol version, software and clock."""
        return await self._ask(self._operator.Hello, common_pb2.HelloRequest(protocol_versions=PROTOCOL_VERSIONS))

    async def examine(self) -> Examined:
        """Return what the coordinator that answers knows of itself; raises VersionError where it is an older one."""
        reply = await self._ask(self._operator.Examine, operator_pb2.ExamineRequest())
        settings = parse_json(reply.settings_json, what="the coordinator's settings")
        return Examined(settings, dict(reply.checks), reply.instance)

    async def submit(self, task: TaskSpec, token: str) -> operator_pb2.TaskStatus:
        """Return the new task's status; the same token again returns the same task."""
        request = operator_pb2.SubmitTaskRequest(task_json=task_to_json(task), idempotency_token=token)
        return await self._ask(self._operator.SubmitTask, request)

    async def tasks(self) -> list[operator_pb2.TaskStatus]:
        """Return every task's status, oldest first."""
        reply = await self._ask(self._operator.ListTasks, operator_pb2.ListTasksRequest())
        return list(reply.tasks)

    async def watch(self, task_id: str) -> AsyncIterator[operator_pb2.TaskEvent]:
        """Yield a task's history, then its changes until it is over."""
        call = self._operator.WatchTask(operator_pb2.WatchTaskRequest(task_id=task_id))
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise await self._explained(error) from error

    async def pause(self, task_id: str) -> operator_pb2.TaskStatus:
        """Return the task's status; a round under way goes on to its end, no new one begins."""
        return await self._ask(self._operator.PauseTask, operator_pb2.TaskRequest(task_id=task_id))

    async def resume(self, task_id: str) -> operator_pb2.TaskStatus:
        """Return the task's status; new rounds begin again."""
        return await self._ask(self._operator.ResumeTask, operator_pb2.TaskRequest(task_id=task_id))

    async def cancel(self, task_id: str) -> operator_pb2.TaskStatus:
        """Return the task's status; a round under way is aborted."""
        return await self._ask(self._operator.CancelTask, operator_pb2.TaskRequest(task_id=task_id))

    async def models(self) -> list[models_pb2.ModelManifest]:
        """Return every model's manifest without its layout, oldest first."""
        return [model for model, _ in await self.standings()]

    async def standings(self) -> list[tuple[models_pb2.ModelManifest, operator_pb2.ModelStatus]]:
        """Return every model's manifest without its layout and where it stands, oldest first."""
        reply = await self._ask(self._operator.ListModels, operator_pb2.ListModelsRequest())
        return list(zip(reply.models, reply.statuses, strict=True))

    async def manifest(self, model_id: str = "") -> models_pb2.ModelManifest:
        """Return a model's manifest; without an id the released one's."""
        return await self._ask(self._models.GetManifest, models_pb2.GetManifestRequest(model_id=model_id))

    async def release(
        self,
        model_id: str,
        *,
        share: float = 1.0,
        despite_gates: bool = False,
        signed: tuple[bytes, bytes] = (b"", b""),
        roll_out: RollOutSpec | None = None,
    ) -> models_pb2.ModelManifest:
        """Return the model that is in force from now on, for that share of the devices.

        `signed` is its bundle's manifest and the signature of that. With a `roll_out` its stages say which share.
        """
        manifest, signature = signed
        request = operator_pb2.ReleaseModelRequest(
            model_id=model_id,
            share=share if roll_out is None else 0.0,
            roll_out_json=b"" if roll_out is None else to_canonical_json(to_mapping(roll_out)),
            despite_gates=despite_gates,
            bundle_manifest=manifest,
            bundle_signature=signature,
        )
        return await self._ask(self._operator.ReleaseModel, request)

    async def roll_back(self, population: str = "") -> models_pb2.ModelManifest:
        """Return the model that is in force again, for a population or that of the newest release."""
        return await self._ask(self._operator.RollBack, operator_pb2.RollBackRequest(population=population))

    async def seen_devices(self) -> AsyncIterator[operator_pb2.SeenDevice]:
        """Yield every device that has called, in the order of ids, fetched page by page."""
        after = ""
        while True:
            request = operator_pb2.ListSeenDevicesRequest(after_device_id=after)
            reply = await self._ask(self._operator.ListSeenDevices, request)
            if not reply.devices:
                return
            for device in reply.devices:
                yield device
            after = reply.devices[-1].device_id

    async def count_seen_devices(self) -> dict[str, int]:
        """Return how many devices of each population have called; raises VersionError where it is an older one."""
        reply = await self._ask(self._operator.CountSeenDevices, operator_pb2.CountSeenDevicesRequest())
        return dict(reply.num_devices)

    async def roll_outs(self) -> list[operator_pb2.RollOutStatus]:
        """Return all staged roll-outs, oldest first."""
        reply = await self._ask(self._operator.ListRollOuts, operator_pb2.ListRollOutsRequest())
        return list(reply.roll_outs)

    async def continue_roll_out(self, roll_out_id: int) -> operator_pb2.RollOutStatus:
        """Return a roll-out that goes on."""
        return await self._ask(self._operator.ContinueRollOut, operator_pb2.RollOutRequest(id=roll_out_id))

    async def stop_roll_out(self, roll_out_id: int) -> operator_pb2.RollOutStatus:
        """Return a roll-out that has ended where it was."""
        return await self._ask(self._operator.StopRollOut, operator_pb2.RollOutRequest(id=roll_out_id))

    async def add_evaluation(self, model_id: str, record: Mapping[str, Any]) -> None:
        """Keep a measurement of a model."""
        request = operator_pb2.AddEvaluationRequest(model_id=model_id, record_json=to_canonical_json(dict(record)))
        await self._ask(self._operator.AddEvaluation, request)

    async def evaluations(self, model_id: str) -> list[dict[str, Any]]:
        """Return all measurements of a model, oldest first."""
        reply = await self._ask(self._operator.ListEvaluations, operator_pb2.ListEvaluationsRequest(model_id=model_id))
        return [parse_json(record, what="an evaluation's record") for record in reply.record_json]

    async def add_threshold(self, model_id: str, threshold: Threshold) -> models_pb2.ModelManifest:
        """Return the model with one more threshold."""
        data = to_canonical_json(to_mapping(threshold))
        request = operator_pb2.AddThresholdRequest(model_id=model_id, threshold_json=data)
        return await self._ask(self._operator.AddThreshold, request)

    async def set_thresholds(
        self, model_id: str, thresholds: Sequence[Threshold], groups: Sequence[GroupRate], *, in_addition: bool = False
    ) -> models_pb2.ModelManifest:
        """Return the model with these thresholds and rates by group beside those that it had, or in their place."""
        request = operator_pb2.SetThresholdsRequest(
            model_id=model_id,
            thresholds_json=to_canonical_json([to_mapping(each) for each in thresholds]),
            groups_json=to_canonical_json([to_mapping(each) for each in groups]),
            in_addition=in_addition,
        )
        return await self._ask(self._operator.SetThresholds, request)

    async def import_model(self, spec_json: bytes, theta: Path, shard: Path | None) -> models_pb2.ModelManifest:
        """Return the manifest of the model that two or three files hold; the same again changes nothing."""
        header = operator_pb2.ImportModelHeader(
            spec_json=spec_json, theta=_ref(theta), public_shard=None if shard is None else _ref(shard)
        )

        def chunks() -> Generator[operator_pb2.ImportModelChunk, None, None]:
            yield operator_pb2.ImportModelChunk(header=header)
            for data in _pieces(theta, *([] if shard is None else [shard])):
                yield operator_pb2.ImportModelChunk(data=data)

        sending = sent(self._sending.ImportModel, chunks(), timeout_s=_TRANSFER_TIMEOUT_S)
        manifest: models_pb2.ModelManifest = await self._answer(sending)
        return manifest

    async def add_graphs(self, folder: Path, manifest: bytes, signature: bytes) -> None:
        """Send a signed bundle's graphs and variants, if any, for the coordinator to hand out once it is released."""
        signed = bundles.listed_by(manifest)
        graphs = [folder / file.name for file in signed.extras]
        if not graphs:
            return
        for path in graphs:
            with _reading(path):
                is_there = path.is_file()
            if not is_there:
                raise NotFoundError(f"the bundle lists {path.name}, which is not in {folder}; export and sign it again")

        def chunks() -> Generator[operator_pb2.AddGraphsChunk, None, None]:
            yield operator_pb2.AddGraphsChunk(
                header=operator_pb2.AddGraphsHeader(bundle_manifest=manifest, bundle_signature=signature)
            )
            for data in _pieces(*graphs):
                yield operator_pb2.AddGraphsChunk(data=data)

        await self._answer(sent(self._sending.AddGraphs, chunks(), timeout_s=_TRANSFER_TIMEOUT_S))

    async def download(self, blob: common_pb2.BlobRef, path: Path) -> None:
        """Write a blob to a new file; raises CorruptDataError, leaving no file, when it arrives damaged."""
        digest = hashlib.sha256()
        call = self._models.Download(models_pb2.DownloadRequest(sha256=blob.sha256), timeout=_TRANSFER_TIMEOUT_S)
        with storage_errors(path.name):
            try:
                with path.open("xb") as file, doing("Fetching a file", total=blob.size_bytes) as step:
                    async for chunk in call:
                        digest.update(chunk.data)
                        file.write(chunk.data)
                        step.show_bytes(step.done + len(chunk.data))
                if digest.hexdigest() != blob.sha256:
                    raise CorruptDataError(f"{path.name} arrived damaged; export it again")
            except grpc.aio.AioRpcError as error:
                path.unlink(missing_ok=True)
                raise await self._explained(error) from error
            except CorruptDataError:
                path.unlink(missing_ok=True)
                raise

    async def _ask(self, method: Callable[..., Awaitable[_T]], request: object) -> _T:
        """Return the answer to one message."""
        return await self._answer(method(request, timeout=TIMEOUT_S))

    async def _answer(self, call: Awaitable[_T]) -> _T:
        try:
            return await call
        except grpc.RpcError as error:
            raise await self._explained(error) from error

    async def _explained(self, error: Any) -> Exception:
        """Return the error for a failed call; where the coordinator did not say it, who answers at its address."""
        address, credentials = self._address, self._credentials
        if error.code() is not grpc.StatusCode.UNAVAILABLE or is_ours(error):
            return from_rpc_error(error, peer=f"the coordinator at {address}")
        ended = pki.load_certificate(credentials.chain_pem).not_valid_after_utc
        if datetime.now(UTC) > ended:  # in TLS 1.3 a server refuses it by closing the connection
            return CertificateError(
                f"the operator's certificate ended on {ended:%Y-%m-%d}, and the coordinator at {address} answers "
                "nobody with such a one; run mien-coordinator operator renew where the coordinator's folder is, or "
                "have a new request signed there (operator sign); if it should be valid still, check the clock"
            )
        answer = await asyncio.to_thread(who_answers, address, credentials.ca_pem, named=self._named)
        return UnreachableError(answer.advice("coordinator", address))


@contextlib.asynccontextmanager
async def connect(address: str, credentials: OperatorCredentials, *, named: str = "") -> AsyncIterator[Coordinator]:
    """Open a mutual TLS channel to a coordinator; calls raise UnreachableError when nobody answers.

    They raise CertificateError where that is because the operator's certificate has ended. `named` is the host that
    the server's certificate has to be for, where that is not the address's own.
    """
    tls = grpc.ssl_channel_credentials(credentials.ca_pem, credentials.key_pem, credentials.chain_pem)
    options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", _MAX_REPLY_BYTES)]
    if named:
        options.append(("grpc.ssl_target_name_override", named))
    with grpc.secure_channel(address, tls, options=options) as sending:
        async with grpc.aio.secure_channel(address, tls, options=options) as channel:
            yield Coordinator(channel, sending, address, credentials, named)


def _ref(path: Path) -> common_pb2.BlobRef:
    with _reading(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return common_pb2.BlobRef(sha256=digest, size_bytes=path.stat().st_size)


def _pieces(*paths: Path) -> Iterator[bytes]:
    """Yield what lies in files, one after another."""
    total = 0
    for path in paths:
        with _reading(path):
            total += path.stat().st_size
    with doing("Sending files", total=total) as step:
        for path in paths:
            with _reading(path), path.open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    yield data
                    step.show_bytes(step.done + len(data))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to read a file that is sent into errors that name it."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} is gone; make it again, and let it be until it is sent") from error
    except PermissionError as error:
        raise FileAccessError(f"may not read {path}; check its owner and permissions") from error
    except OSError as error:
        raise CorruptDataError(f"{path} cannot be read ({error.strerror}); check the disk, or make it again") from error
