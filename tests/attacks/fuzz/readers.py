"""Every reader of foreign bytes and files, with valid inputs to begin from. A reader answers, or raises a MienError.

`READERS` is kept complete by `test_readers.py`, which looks for readers in the source: a function or method by the name
of a reader (`NAMES`) whose first argument is bytes, text or a path. What is none bears its reason in `NO_READER`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import io
import json
import pickle
import re
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Final, cast

import cv2
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import TensorProto, helper

from coordinator.keys import pki
from device_sdk.people.enrolled import LastRound
from mien.contribution import ContributionLayout, Lane
from mien.layout import ParameterEntry, ParameterLayout
from mien.log.audit import Anchor
from mien.log.checkpoints import LOG, WITNESS, Checkpoint, Note, NoteSigner
from mien.log.witnesses import AddCheckpoint
from mien.models import bundles
from mien.models.variants import VariantList
from mien.protocol.canonical import model_to_json, task_to_json, to_canonical_json
from mien.protocol.invite import Invite
from mien.protocol.revocations import RevocationList
from mien.protocol.tensors import PublicShard, pack_tensors
from mien.protocol.uploads import piece_prefix
from mien.records import to_mapping
from mien.specs import FaceInputSpec, ModelSpec, TaskSpec, Threshold
from tests.coordinator.registrar.attestation.phones import description
from tests.device_sdk.made_up_variants import variant

ROOT: Final = Path(__file__).resolve().parents[3]
ROOMS: Final = ("mien", "coordinator", "device_sdk", "simulation")
NAMES: Final = re.compile(
    r"(.*_)?(from_(bytes|json|url|plain|text)|parse|read|load|unpack|unseal|decode|import)(_.*)?|opened_?\w*"
)
_ARGUMENTS: Final = re.compile(r"bytes( \| (memoryview|str|os\.PathLike.*))*|str|Path|str \| os\.PathLike\[str\]")
_TEXTS: Final = ("text", "url", "probes", "line", "data")


@dataclass(frozen=True)
class Reader:
    """One reader: what it is called with, and inputs that it reads."""

    read: Callable[[bytes], object]
    seeds: Sequence[bytes] = field(repr=False)


def found() -> Iterator[str]:
    """Yield the readers that are in the source, as module:function or module:Class.method."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "migrations" in path.parts or path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and _is_reader(node, is_method=False):
                    yield f"{module}:{node.name}"
                elif isinstance(node, ast.ClassDef):
                    methods = (m for m in node.body if isinstance(m, ast.FunctionDef) and _is_reader(m, is_method=True))
                    yield from (f"{module}:{node.name}.{method.name}" for method in methods)


def _is_reader(node: ast.FunctionDef, *, is_method: bool) -> bool:
    if node.name.startswith("_") or not NAMES.fullmatch(node.name):
        return False
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    if any(name.endswith((".command", "overload", "property")) for name in decorators):
        return False
    arguments = node.args.posonlyargs + node.args.args
    if is_method and "staticmethod" not in decorators:
        arguments = arguments[1:]
    if not arguments or arguments[0].annotation is None:
        return False
    kind, name = ast.unparse(arguments[0].annotation), arguments[0].arg
    return bool(_ARGUMENTS.fullmatch(kind)) and (kind != "str" or name in _TEXTS)


NO_READER: Final = {
    "mien.secagg.wire:Message.from_bytes": "read as each of its messages",
    "mien.shell.files:read_private": "returns bytes as they are",
    "mien.shell.files:read_limited": "returns bytes as they are",
    "coordinator.commands.common:read_pem": "returns bytes as they are",
    "coordinator.commands.models.folder:read_signed": "bytes as they are; mien.models.bundles:verify reads them",
    "coordinator.release.worker:import_model": "starts a child process for mien.backbones.importers:import_model",
    "device_sdk.faces.source:read_source": "a folder of pictures: device_sdk.faces.images:decode_image",
    "simulation.demo.measure:OwnSample.read": "a folder of pictures",
    "simulation.demo.phone:PhonePlan.read": "a private file that the demo itself has just written",
    "simulation.papers.demo.tune:LfwCrops.read": "a folder of pictures",
    "simulation.faces.listed:read_pairs": "a folder's list: mien.evaluation.protocols.lfw:parse_pairs",
    "simulation.runs.spec:load": "a file of simulation.runs.spec:parse",
    "simulation.runs.spec:load_data": "a file of simulation.runs.spec:parse_data",
    "simulation.runs.grid:load_sweep": "a file of simulation.runs.spec:parse_data",
    "simulation.runs.tables:read_tables": "a file that comes with the package",
    "simulation.runs.experiment:read_record": "a file that the same program wrote, as read_sweep reads",
    "simulation.runs.grid:read_sweep": "a folder that the same program wrote, as simulation.runs.reproduced:read",
    "simulation.fleet.traces:read_behaviour": "a file of simulation.fleet.traces:parse_behaviour",
    "simulation.fleet.traces:read_speeds": "a file of simulation.fleet.traces:parse_speeds",
    "simulation.engines.cluster:ClusterEngine.opened": "opens what the run's own key has sealed, and nothing else",
    "simulation.runs.reproduced:read": "a folder that the same program wrote, of simulation.runs.records:read_json",
    "mien.backbones.importers:import_sface": "mien.backbones.importers:import_model, which knows files by their hash",
    "mien.backbones.importers:import_mobilefacenet192": "as import_sface",
    "mien.models.sface_file:read_sface": "as import_sface",
    "mien.models.sface_file:read_known_sface": "as import_sface",
}
"""What looks like a reader and is none, or reads by another one that is in `READERS`."""


# What valid inputs are made of

LAYOUT = ParameterLayout((ParameterEntry("w", (2, 3)), ParameterEntry("n.running_mean", (3,), "buffer")))
INPUT = FaceInputSpec(dim=4)
SPEC = ModelSpec(
    "tiny",
    LAYOUT.sha256,
    INPUT,
    "made up",
    "none",
    ("w",),
    (Threshold(0.3, 0.001, "faces", 9, 30_000, "a" * 64, "2026-01-01"),),
)
GROUPED = {"Ada": [Path("Ada/1.jpg")], "Bo": [Path("Bo/1.jpg")]}
RELEASE_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
VARIANT: Final = variant("a" * 64, b"a file")
CONTRIBUTION = ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("theta", 6)), (Lane("w", 4),))


NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
"""When the certificates of `seeds` are good; made once, so that damage is to the same bytes each time."""


def seed(name: str) -> bytes:
    """Return a certificate or the like of an authority whose secret key is the number 5."""
    return (Path(__file__).parent / "seeds" / name).read_bytes()


def authority_key() -> bytes:
    """Return that authority's key (PEM)."""
    return pki.key_to_pem(ec.derive_private_key(5, ec.SECP256R1()))


@functools.cache
def secagg_config() -> Any:
    """The terms of a private sum."""
    from tests.mien.secagg.cohort import make_config

    return make_config(4)


def through(write: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a reader of bytes that goes through a file of that name."""

    def call(data: bytes) -> object:
        with tempfile.TemporaryDirectory(prefix="mien-fuzz-") as folder:
            path = Path(folder) / write
            path.write_bytes(data)
            return read(path)

    return call


def of(name: str, *more: Any, **named: Any) -> Callable[[bytes], object]:
    """Return the reader of that name, called with bytes."""
    return lambda data: _named(name)(data, *more, **named)


def texts(name: str, *more: Any, **named: Any) -> Callable[[bytes], object]:
    """Return the reader of that name, called with text as files give it."""
    return lambda data: _named(name)(data.decode("utf-8", errors="replace"), *more, **named)


def _named(name: str) -> Any:
    module, _, attributes = name.partition(":")
    return functools.reduce(getattr, attributes.split("."), importlib.import_module(module))


def picture(suffix: str) -> bytes:
    """A small picture of nobody, encoded."""
    pixels = np.random.default_rng(1).integers(0, 255, (24, 20, 3), dtype=np.uint8)
    done, data = cv2.imencode(suffix, pixels)
    assert done
    return data.tobytes()


def onnx_graph() -> bytes:
    """A small ONNX model of one matrix product."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", shapes[:1], shapes[1:], [weights])
    data: bytes = helper.make_model(graph).SerializeToString()
    return data


def tflite_graph() -> bytes:
    """The head of a TFLite file: its tables, without a model behind them."""
    return b"\x1c\x00\x00\x00TFL3" + bytes(20) + struct.pack("<IHHHH", 8, 8, 8, 4, 4) + bytes(64)


def archived(kind: str) -> bytes:
    """A coordinator's or registrar's archive as it is inside its seal."""
    stream = io.BytesIO()
    names = (f"{kind}.toml", "ca.pem")
    manifest = {"format": 1, "software": "x", "created_unix_s": 1, "audit_head": None, "files": sorted(names)}
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in (("manifest.json", json.dumps(manifest).encode()), *((name, b"content") for name in names)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def unpack_archive(backup: str) -> Callable[[bytes], object]:
    """Return the reader of what is inside a backup's seal; the seal itself lets no changed byte through."""

    def call(data: bytes) -> object:
        from coordinator.home import archive

        inside = io.BytesIO(data)
        reader = SimpleNamespace(read=inside.read, finish=lambda: None)
        with tempfile.TemporaryDirectory(prefix="mien-fuzz-") as folder:
            return archive.unpack(_named(f"coordinator.{backup}.kind"), cast("Any", reader), Path(folder))

    return call


def open_sealed(data: bytes) -> object:
    """Read a sealed file to its end."""
    from coordinator.home.sealed_file import OpeningReader

    reader = OpeningReader(cast("IO[bytes]", io.BytesIO(data)), "correct horse")
    reader.finish()
    return reader


def record_archive() -> bytes:
    """A record archive with one image record and the header of insightface's sets."""
    content = struct.pack("<IfQQ", 0, 1.0, 1, 0) + picture(".png")
    padded = content + bytes(-len(content) % 4)
    return struct.pack("<II", 0xCED7230A, len(content)) + padded


def read_records(data: bytes) -> object:
    """Read a record archive whose index is right."""
    from simulation.faces.recordio import RecordArchive

    def read(path: Path) -> object:
        path.with_suffix(".idx").write_text("1\t0\n")
        with RecordArchive(path) as archive:
            return archive.read(1)

    return through("train.rec", read)(data)


def read_index(data: bytes) -> object:
    """Read the index of a record archive, and people by it."""
    from simulation.faces.recordio import RecordArchive

    def read(path: Path) -> object:
        path.with_suffix(".rec").write_bytes(record_archive())
        with RecordArchive(path.with_suffix(".rec")) as archive:
            return [archive.read(int(key)) for key in archive.keys]

    return through("train.idx", read)(data)


def in_folder(name: str, reader: str, *more: Any) -> Callable[[bytes], object]:
    """Return a reader of a folder in which one file has these bytes."""
    return lambda data: through(name, lambda path: _named(reader)(path.parent, *more))(data)


def model_folder(file: str) -> Callable[[bytes], object]:
    """Return the reader of a model folder in which one file is changed."""

    def read(path: Path) -> object:
        whole = {"model.json": model_to_json(SPEC, LAYOUT), "theta.f32": bytes(4 * LAYOUT.size)}
        for name in whole.keys() - {file}:
            (path.parent / name).write_bytes(whole[name])
        return _named("simulation.faces.models:read_model")(path.parent)

    return through(file, read)


def private(read: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a reader of a file that is its owner's alone."""

    def call(path: Path) -> object:
        path.chmod(0o600)
        return read(path)

    return call


def gallery() -> tuple[Callable[[bytes], object], bytes]:
    """Return the reader of a gallery's file, and such a file."""
    from device_sdk.people.gallery import Gallery
    from device_sdk.storage.keystore import FileKeyStore

    kept = tempfile.mkdtemp(prefix="mien-fuzz-gallery-")
    keys = FileKeyStore(Path(kept))
    path = Path(kept) / "gallery.db"
    Gallery.open(path, keys).close()
    data = path.read_bytes()

    def read(path: Path) -> object:
        opened = Gallery.open(path, keys)
        try:
            return opened.people()
        finally:
            opened.close()

    return through("gallery.db", read), data


def _of_the_core() -> dict[str, Reader]:
    task, model = task_to_json(TaskSpec("t", "fedface")), model_to_json(SPEC, LAYOUT)
    tensors = pack_tensors({"a": np.zeros((2, 2), np.float32)}, {"people": "[]"})
    crops = np.zeros((2, INPUT.height, INPUT.width, 3), np.uint8)
    shard = PublicShard(crops, np.zeros(2, np.int64), "CC0", "nobody").to_bytes()
    invite = Invite("registrar.example:7440", "a" * 64, "b" * 64, "t" * 43).to_url().encode()
    theta = bundles.BundleFile(bundles.THETA, "d" * 64, 4 * LAYOUT.size)
    manifest = bundles.manifest_of(model, "c" * 64, [theta], sequence=1).to_json()
    ones = {lane.name: np.ones(lane.size, np.float32) for lane in (*CONTRIBUTION.summed, *CONTRIBUTION.revealed)}
    vector = CONTRIBUTION.pack(ones)
    contribution = vector.to_bytes()
    core = "mien.protocol"
    return {
        "mien.log.audit:Anchor.parse": Reader(
            texts("mien.log.audit:Anchor.parse"), [str(Anchor(17, "5" * 64)).encode()]
        ),
        "mien.models.onnx_file:read_onnx": Reader(of("mien.models.onnx_file:read_onnx"), [onnx_graph()]),
        "mien.backbones._tflite:read_tflite": Reader(of("mien.backbones._tflite:read_tflite"), [tflite_graph()]),
        "mien.backbones.importers:import_model": Reader(
            of("mien.backbones.importers:import_model", "file", unverified=True), [onnx_graph(), tflite_graph()]
        ),
        "mien.shell.settings:read_toml": Reader(
            through("s.toml", lambda path: _named("mien.shell.settings:read_toml")(path, 64 * 1024)), [b"a = 1\n"]
        ),
        "mien.records:parse_toml": Reader(
            texts("mien.records:parse_toml", "it"), [b'a = 1\n[b]\nc = ["d", 2026-01-01]\n']
        ),
        "+mien.models.bundles:verify": Reader(
            lambda data: bundles.verify(bundles.name_of(RELEASE_KEY), data, bundles.sign(RELEASE_KEY, data)), [manifest]
        ),
        "device_sdk.people.enrolled:LastRound.from_text": Reader(
            texts("device_sdk.people.enrolled:LastRound.from_text"),
            [LastRound(1, counted=True).to_text().encode()],
        ),
        "mien.models.variants:VariantList.from_json": Reader(
            VariantList.from_json, [VariantList((VARIANT,)).to_json()]
        ),
        "mien.contribution:ContributionLayout.parse": Reader(CONTRIBUTION.parse, [contribution]),
        "mien.contribution:ContributionLayout.parse_revealed": Reader(
            CONTRIBUTION.parse_revealed, [contribution[-16:]]
        ),
        f"{core}.canonical:parse_json": Reader(
            of(f"{core}.canonical:parse_json", what="it"), [task, b"[1, 2.5, null]"]
        ),
        f"{core}.canonical:task_from_json": Reader(of(f"{core}.canonical:task_from_json"), [task]),
        f"{core}.canonical:model_from_json": Reader(of(f"{core}.canonical:model_from_json"), [model]),
        f"{core}.invite:Invite.from_url": Reader(texts(f"{core}.invite:Invite.from_url"), [invite]),
        f"{core}.tensors:unpack_tensors": Reader(of(f"{core}.tensors:unpack_tensors", what="it"), [tensors]),
        f"{core}.tensors:unpack_metadata": Reader(
            lambda data: (
                _named(f"{core}.tensors:unpack_tensors")(data, what="it")
                and _named(f"{core}.tensors:unpack_metadata")(data)
            ),
            [tensors],
        ),
        f"{core}.tensors:PublicShard.from_bytes": Reader(
            lambda data: PublicShard.from_bytes(data, INPUT), [shard[:600], shard]
        ),
        f"{core}.uploads:parse_piece": Reader(_parse_piece, [piece_prefix(700, 5) + b"bytes", piece_prefix(0, 0)]),
    }


def _parse_piece(data: bytes) -> object:
    """Read a piece of an upload; protobuf's own error is what its caller expects."""
    from google.protobuf.message import DecodeError

    from mien.protocol.uploads import parse_piece

    try:
        return parse_piece(data)
    except DecodeError:
        return None


def _of_evaluation() -> dict[str, Reader]:
    lists = "mien.evaluation.protocols"
    pairs = b"2\t1\nAda\t1\t2\nAda\t1\tBob\t1\nBob\t1\t2\nAda\t2\tBob\t1\n"
    origin = {"dataset": "d", "dataset_sha256": "0" * 64, "model_id": "m", "commit": "c", "command": "x"}
    record = {
        "metric": "tar", "value": 0.9, "protocol": "p", "protocol_version": "1", "num_mated": 1, "num_non_mated": 1,
        "num_fte": 0, "provenance": origin,
    }  # fmt: skip
    subjects = b"TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID\n5,1,img/1.jpg,50\n6,1,img/2.jpg,51\n"
    pair_set = pickle.dumps(([picture(".jpg")] * 20, [True] * 10), 2)
    parsed = {
        f"{lists}.ijb:parse_face_media": [b"1.jpg 1 69544\n2.jpg 1 700\n"],
        f"{lists}.ijb:parse_template_pairs": [b"1 2 1\n1 3 0\n"],
        f"{lists}.ijb:parse_landmarks": [b"1.jpg 1 2 3 4 5 6 7 8 9 10 0.5\n"],
        f"{lists}.lfw:parse_pairs": [pairs],
        f"{lists}.rfw:parse_rfw_pairs": [b"a 1 2\n" * 5 + b"a 1 b 2\n" * 5],
        f"{lists}.rfw:parse_sllfw": [b"Ada/Ada_0001.jpg\nBob/Bob_0001.jpg\n" * 10],
        f"{lists}.rfw:parse_people": [b"2\nAda 3\nBob 4\n"],
    }
    named = {
        f"{lists}.ijb:parse_subjects": [subjects],
        f"{lists}.ijb:parse_ijba_metadata": [subjects],
        f"{lists}.megaface:parse_noise": [b"# noise\n1\ta.jpg\n"],
    }
    challenge = json.dumps({"path": ["a/1.jpg", "b/2.jpg"], "id": ["a", "b"]}).encode()
    return {
        **{name: Reader(texts(name), seeds) for name, seeds in parsed.items()},
        **{name: Reader(texts(name, "list"), seeds) for name, seeds in named.items()},
        f"{lists}.ijb:parse_ijba_comparisons": Reader(_comparisons, [b"5,6\n6,5\n"]),
        f"{lists}.megaface:parse_challenge": Reader(
            lambda data: texts(f"{lists}.megaface:parse_challenge", '{"path": ["c/3.jpg"]}')(data), [challenge]
        ),
        f"{lists}.bins:parse_bin": Reader(of(f"{lists}.bins:parse_bin"), [pair_set]),
        "mien.evaluation.records:MetricRecord.from_json": Reader(
            texts("mien.evaluation.records:MetricRecord.from_json"), [json.dumps(record).encode()]
        ),
    }


def _comparisons(data: bytes) -> object:
    from mien.evaluation.protocols import ijb

    subjects = ijb.Subjects(np.array([5, 6]), np.array([1, 1]))
    return ijb.parse_ijba_comparisons(data.decode("utf-8", errors="replace"), subjects, "list")


def _of_private_sums() -> dict[str, Reader]:
    from tests.attacks.fuzz.sums import messages

    said, own, verify = messages(secagg_config())
    wire, event = "mien.secagg.wire", "mien.dp.ledger:Event.from_json"
    plain = {"Advertise": 1, "Shares": 3, "Masked": 5, "Consistency": 7, "Proof": 8, "Unmask": 9}
    return {
        **{f"+{wire}:{n}.from_bytes": Reader(of(f"{wire}:{n}.from_bytes"), said[k]) for n, k in plain.items()},
        f"+{wire}:Delivered.from_bytes": Reader(of(f"{wire}:Delivered.from_bytes", 4), said[4]),
        f"+{wire}:Survivors.from_bytes": Reader(of(f"{wire}:Survivors.from_bytes", 4), said[6]),
        f"{wire}:invite_from_bytes": Reader(of(f"{wire}:invite_from_bytes"), said[0]),
        f"{wire}:roster_from_bytes": Reader(of(f"{wire}:roster_from_bytes"), said[2]),
        "mien.secagg.roster:read_roster": Reader(
            lambda data: _named("mien.secagg.roster:read_roster")(data, secagg_config(), own, verify), said[2]
        ),
        "mien.secagg.config:RoundConfig.from_bytes": Reader(
            of("mien.secagg.config:RoundConfig.from_bytes"), [secagg_config().to_bytes()]
        ),
        "device_sdk.rounds.attempts:OwnSum.from_bytes": Reader(
            of("device_sdk.rounds.attempts:OwnSum.from_bytes"),
            [secagg_config().to_bytes(), secagg_config().to_bytes() + bytes(8) + b"\1" + bytes(32)],
        ),
        **_of_the_log(),
        "mien.secagg.canonical:unpack_members": Reader(of("mien.secagg.canonical:unpack_members", 12), [b"\xff\x0f"]),
        "mien.secagg.quantise:unpack": Reader(of("mien.secagg.quantise:unpack", 24), [bytes(range(30))]),
        event: Reader(of(event), [_event()]),
    }


def _of_the_log() -> dict[str, Reader]:
    """A checkpoint of the log of rounds with its key, and the entries that a log holds."""
    key = NoteSigner.of(LOG, RELEASE_KEY)
    checkpoint = Checkpoint("mien/0123", 7, bytes(32))
    note = str(Note(checkpoint.text, (key.sign(checkpoint.text),)))
    entries = [
        {"kind": "round", "task": "t1", "round": 3, "attempt": 1, "model_sha256": "ab" * 32},
        {"kind": "task", "task": "t1", "model_sha256": "ab" * 32},
        {"kind": "certificate", "sha256": "cd" * 32},
    ]
    name = "mien.log.checkpoints"
    return {
        f"{name}:NoteKey.parse": Reader(texts(f"{name}:NoteKey.parse"), [str(key.key).encode()]),
        f"+{name}:Note.parse": Reader(texts(f"{name}:Note.parse"), [note.encode()]),
        f"{name}:Checkpoint.parse": Reader(texts(f"{name}:Checkpoint.parse"), [checkpoint.text.encode()]),
        "mien.log.witnesses:AddCheckpoint.parse": Reader(
            of("mien.log.witnesses:AddCheckpoint.parse"), [AddCheckpoint(3, (bytes(32),), note).to_bytes()]
        ),
        "mien.log.witnesses:WitnessAddress.parse": Reader(
            texts("mien.log.witnesses:WitnessAddress.parse"),
            [f"{NoteSigner.of(WITNESS, RELEASE_KEY).key} https://witness.example".encode()],
        ),
        "mien.log.entries:LogEntry.read": Reader(
            of("mien.log.entries:LogEntry.read"), [to_canonical_json(each) for each in entries]
        ),
    }


def _event() -> bytes:
    from mien.dp.ledger import Event

    return Event(
        *("default", 0, "t", 1, 1, "0" * 64, "skellam", 1.0, 1.0, 1.0, 1.0, 10, 8, 3, 1, 8.0, 1e-5, None, 1.0, "0" * 64)
    ).to_json()


def _of_servers() -> dict[str, Reader]:
    pem, key, leaf, crl = seed("authority.pem"), authority_key(), seed("leaf.der"), seed("revocations.der")
    ca, csr = pki.load_certificate(pem), seed("request.pem")
    toml = b'name = "t"\nmethod = "fedavg"\n[cohort]\nsize = 3\nmin_reports = 3\n[privacy]\nmin_cohort = 3\n'
    settings = b'address = "c.example:7443"\nnames = ["a"]\ndrain_s = 5.0\n'
    roll_out = b'{"population": "default", "min_cohort": 16}'
    load = _named("coordinator.home.config:SETTINGS")
    return {
        "coordinator.commands.fleet:read_roll_out": Reader(
            through("r.toml", lambda path: _named("coordinator.commands.fleet:read_roll_out")(path)),
            [b"widen = 0.5\nmin_cohort = 16\n"],
        ),
        "coordinator.commands.tasks:read_task": Reader(
            through("t.toml", lambda path: _named("coordinator.commands.tasks:read_task")(path)), [toml]
        ),
        "mien.rounds.rollouts:spec_from_json": Reader(of("mien.rounds.rollouts:spec_from_json"), [roll_out]),
        "coordinator.keys.pki:load_authority": Reader(lambda data: pki.load_authority(data, key), [pem]),
        "coordinator.keys.pki:load_authority_certificate": Reader(pki.load_authority_certificate, [pem]),
        "coordinator.keys.pki:load_certificate": Reader(pki.load_certificate, [leaf, pem]),
        "coordinator.keys.pki:load_crl": Reader(lambda data: pki.load_crl(data, ca), [crl]),
        "mien.protocol.revocations:RevocationList.parse": Reader(lambda data: RevocationList.parse(data, ca), [crl]),
        "coordinator.keys.pki:load_key": Reader(pki.load_key, [key]),
        "+coordinator.keys.pki:csr_public_key": Reader(pki.csr_public_key, [csr]),
        "coordinator.home.settings:Settings.load": Reader(
            through("coordinator.toml", lambda path: load.load(path, environment={})), [settings]
        ),
        "coordinator.release.signing:read_key": Reader(
            through("k.key", private(lambda path: _named("coordinator.release.signing:read_key")(path))),
            [key, _release_pem()],
        ),
        "coordinator.store.sealing:MasterKey.load": Reader(
            through("store.key", private(lambda path: _named("coordinator.store.sealing:MasterKey.load")(path))),
            [bytes(32)],
        ),
        "coordinator.registrar.attestation.description:parse_description": Reader(
            of("coordinator.registrar.attestation.description:parse_description"), [description(b"challenge")]
        ),
        "coordinator.registrar.attestation.policy:parse_status_list": Reader(
            of("coordinator.registrar.attestation.policy:parse_status_list"),
            [b'{"entries": {"6681": {"status": "REVOKED", "reason": "KEY_COMPROMISE"}}}'],
        ),
        "coordinator.replicas.sums:Addends.parse": Reader(
            lambda data: _named("coordinator.replicas.sums:Addends")(4, 32).parse(data), [bytes(range(16))]
        ),
        "+coordinator.home.archive:unpack of a coordinator": Reader(
            unpack_archive("home.coordinator_backup:CoordinatorBackup"), [archived("coordinator")]
        ),
        "+coordinator.home.archive:unpack of a registrar": Reader(
            unpack_archive("registrar.backup:RegistrarBackup"), [archived("registrar")]
        ),
        "+coordinator.home.sealed_file:OpeningReader": Reader(open_sealed, [_sealed()]),
    }


def _release_pem() -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return RELEASE_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _sealed() -> bytes:
    from mien.log.chain import canonical_json

    header = canonical_json({"kdf": "scrypt", "n": 2**17, "r": 8, "p": 1, "salt": "zz" * 16, "chunk": 262144})
    return b"MIENCOB1" + struct.pack(">I", len(header)) + header + bytes(64)


def _of_devices() -> dict[str, Reader]:
    leaf = seed("leaf.der")
    graphs = {"backbone": "tiny", "layout_sha256": "0" * 64, "input": to_mapping(INPUT), "graphs": [], "version": 1}
    read_gallery, gallery_file = gallery()
    people = [{"name": "Ada", "enrolled_unix_s": 1, "consent_unix_s": None, "templates": [{"id": 1}]}]
    crops = np.zeros((1, 112, 112, 3), np.uint8)
    exported = pack_tensors({"crops/1": crops}, {"people": json.dumps(people)})
    plain = pack_tensors({"a": np.zeros(1, np.uint8)}, {"people": json.dumps(people)})
    return {
        "device_sdk.server.certificates:load_certificate": Reader(
            of("device_sdk.server.certificates:load_certificate", whose="its"), [leaf]
        ),
        "device_sdk.config:load_config": Reader(
            through("device.toml", lambda path: _named("device_sdk.config:load_config")(path)),
            [b"[participation]\nmin_cohort = 16\n"],
        ),
        "device_sdk.runtimes.manifest:GraphManifest.from_json": Reader(
            of("device_sdk.runtimes.manifest:GraphManifest.from_json"), [json.dumps(graphs).encode()]
        ),
        "device_sdk.faces.images:decode_image": Reader(
            of("device_sdk.faces.images:decode_image"),
            [picture(suffix) for suffix in (".jpg", ".png", ".webp", ".bmp")],
        ),
        "device_sdk.people.gallery:from_plain": Reader(
            of("device_sdk.people.gallery:from_plain"), [exported[:400], plain, exported]
        ),
        "device_sdk.people.backup:unseal_backup": Reader(
            of("device_sdk.people.backup:unseal_backup", "correct horse"), [_exported()]
        ),
        "+device_sdk.people.gallery:Gallery.open": Reader(read_gallery, [gallery_file]),
        "+mien.secagg.leaves:leaf_verifier": Reader(_leaf_verifier(), [leaf]),
    }


def _leaf_verifier() -> Callable[[bytes], object]:
    from mien.secagg.leaves import leaf_verifier

    return leaf_verifier(pki.load_certificate(seed("authority.pem")), "default", lambda: NOW)


def _exported() -> bytes:
    from device_sdk.people.backup import MAGIC

    return MAGIC + struct.pack(">I", 2) + b"{}" + bytes(64)


PHONES_PLAN: Final = b'{"invites": ["mien://join?"], "folder": "m", "options": {"faults": {"drop_out": 0.1}}}'


def _of_data_sets() -> dict[str, Reader]:
    """Data sets of which one file is changed, opened and read to their end; and the journal of an import."""
    from simulation.faces import store, writer
    from simulation.faces.store import CropStore

    terms, whole = writer.StoreTerms("CC0", "made up", is_synthetic=True), dict[str, bytes]()
    with tempfile.TemporaryDirectory(prefix="mien-fuzz-") as folder:
        with writer.StoreWriter(Path(folder), terms, height=2, width=2, plan={}) as begun:
            for name in ("Ada", "Bo"):
                begun.add(writer.Imported(name, np.zeros((1, 2, 2, 3), np.uint8), ("1",), ((f"{name}/2", "no_face"),)))
            begun.sync()
            journal = (Path(folder) / writer.JOURNAL).read_bytes()
            begun.finish("")
        whole |= {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def opened(name: str) -> Callable[[bytes], object]:
        def read(path: Path) -> object:
            for other in whole.keys() - {name}:
                (path.parent / other).write_bytes(whole[other])
            store = CropStore(path.parent)
            seen = [*store.names(), *store.failures(), *(store.file(image) for image in range(2)), store.crops.sum()]
            store.verify()
            return seen

        return through(name, read)

    def go_on(path: Path) -> object:
        plan = {"licence": "CC0", "origin": "made up", "is_synthetic": True, "height": 2, "width": 2}
        (path.parent / writer.PLAN).write_bytes(json.dumps(plan, sort_keys=True, separators=(",", ":")).encode())
        (path.parent / writer.PART).write_bytes(bytes(24))
        with writer.StoreWriter(path.parent, terms, height=2, width=2, plan={}) as resumed:
            return resumed.finish("")

    return {
        "simulation.faces.store:read_manifest": Reader(opened(store.MANIFEST), [whole[store.MANIFEST]]),
        **{
            f"+simulation.faces.store:CropStore {n}": Reader(opened(n), [d])
            for n, d in whole.items()
            if n.endswith("t")
        },
        "+simulation.faces.store:CropStore index": Reader(opened(store.INDEX), [whole[store.INDEX]]),
        "+simulation.faces.writer:StoreWriter journal": Reader(through(writer.JOURNAL, go_on), [journal]),
    }


def _of_the_fleet() -> dict[str, Reader]:
    client = {"active": [0, 500], "inactive": [90.5, 900], "finish_time": 1000, "duration": 1, "model": "x"}
    behaviour = [json.dumps({"1": client, "2": client}).encode(), b"client,active,inactive,finish_time\n1,0,90,1000\n"]
    speeds = [
        b'{"1": {"computation": 162.0, "communication": 5648.1}}',
        b"client,computation,communication\n1,162.0,5e3\n",
    ]
    return {
        "simulation.fleet.profile:parse_profile": Reader(
            texts("simulation.fleet.profile:parse_profile"), [b"[failures]\nshare = 0.1\n[work]\nstep_ms = 3.0\n"]
        ),
        "simulation.fleet.traces:parse_behaviour": Reader(of("simulation.fleet.traces:parse_behaviour"), behaviour),
        "simulation.fleet.traces:parse_speeds": Reader(of("simulation.fleet.traces:parse_speeds"), speeds),
    }


def _of_simulation() -> dict[str, Reader]:
    experiment = (
        b'name = "x"\n[model]\nsource = "sface"\n[[faces]]\nkind = "shipped"\n[partition]\nscheme = "one_identity"\n'
        b'clients = 10\ntest = 20\n[task]\nmethod = "fedavg"\nrounds = 3\n[evaluation]\nevery = 1\n'
    )
    return {
        "simulation.runs.spec:parse": Reader(texts("simulation.runs.spec:parse"), [experiment]),
        "simulation.runs.spec:parse_data": Reader(texts("simulation.runs.spec:parse_data"), [experiment]),
        "simulation.faces.groups:read_groups": Reader(
            through("g.csv", lambda path: _named("simulation.faces.groups:read_groups")(path, GROUPED)),
            [b"\xef\xbb\xbfperson,age,sex\nAda,34,f\nBo,,m\n", b'picture,age\r\n"Ada/1.jpg",0-12\r\n'],
        ),
        "simulation.faces.models:read_model": Reader(model_folder("model.json"), [model_to_json(SPEC, LAYOUT)]),
        "+simulation.faces.models:read_model theta": Reader(model_folder("theta.f32"), [bytes(4 * LAYOUT.size)]),
        "simulation.runs.records:read_json": Reader(
            through("r.json", lambda path: _named("simulation.runs.records:read_json")(path)), [b'{"round": 1}']
        ),
        "simulation.phones.run:read_invites": Reader(
            through("invites", lambda path: _named("simulation.phones.run:read_invites")(path, 1)), [b"mien://join?\n"]
        ),
        "simulation.phones.worker:read_plan": Reader(
            through("plan", private(lambda path: _named("simulation.phones.worker:read_plan")(path))), [PHONES_PLAN]
        ),
        **_of_data_sets(),
        **_of_the_fleet(),
        "+simulation.faces.recordio:RecordArchive": Reader(read_records, [record_archive()]),
        "+simulation.faces.recordio:RecordArchive index": Reader(read_index, [b"1\t0\n"]),
    }


GROUPS: Final = {
    "core": _of_the_core,
    "evaluation": _of_evaluation,
    "private sums": _of_private_sums,
    "servers": _of_servers,
    "devices": _of_devices,
    "simulation": _of_simulation,
}


@functools.cache
def readers(group: str = "") -> dict[str, Reader]:
    """Return the readers of a group, or all, by name; those after a `+` are found by no rule."""
    groups = [GROUPS[group]] if group else list(GROUPS.values())
    return {name: reader for make in groups for name, reader in make().items()}
