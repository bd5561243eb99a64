"""Units and container file: every command in them exists, and the tools that read such files have nothing to object."""

from __future__ import annotations

import configparser
import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main
import yaml

import coordinator.commands.cli
import coordinator.commands.registrar_cli
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.registrar.config import RegistrarConfig
from mien.protocol.rounds import Stage
from mien.rounds.records import TaskState
from mien.rounds.rollouts import RollOutState
from tests.programs import call

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path for path in (DEPLOY / "systemd").glob("*.service") if "@" not in path.name)
BACKUP = DEPLOY / "systemd/mien-backup@.service"
PROGRAMS = {"mien-coordinator": coordinator.commands.cli.app, "mien-registrar": coordinator.commands.registrar_cli.app}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path, encoding="utf-8")
    return parser


def check_command(words: list[str]) -> None:
    """Fail unless a command line names an installed program, a verb of it and options that the verb has."""
    program, *options = words
    name = Path(program).name
    assert name in PYPROJECT["project"]["scripts"]
    command = typer.main.get_command(PROGRAMS[name])
    while hasattr(command, "commands"):
        command = command.commands[options.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_what_exists_where_its_user_may_write(path: Path) -> None:
    service, name = unit(path)["Service"], path.stem
    check_command(shlex.split(service["ExecStart"]))
    home = service["ReadWritePaths"]
    program = "mien-coordinator" if name == "mien-dashboard" else name
    assert service["Environment"] == f"{program.upper().replace('-', '_')}_HOME={home}"
    folders = [line.split() for line in (DEPLOY / "systemd/mien.tmpfiles.conf").read_text().splitlines()]
    assert ["d", home, "0700", service["User"], service["Group"], "-"] in folders
    lines = (DEPLOY / "systemd/mien.sysusers.conf").read_text().splitlines()
    users = [shlex.split(line, comments=True) for line in lines]
    assert [service["User"], home] in [[user[1], user[4]] for user in users if user[:1] == ["u"]]
    drains = {
        "mien-coordinator": CoordinatorConfig("a:1").drain_s,
        "mien-registrar": RegistrarConfig("a:1", "b:2").drain_s,
    }
    assert float(service["TimeoutStopSec"].removesuffix("s")) > 2 * drains.get(name, 3.0)


def test_the_dashboard_cannot_read_the_keys() -> None:
    hidden = unit(DEPLOY / "systemd/mien-dashboard.service")["Service"]["InaccessiblePaths"].split()
    home = CoordinatorHome(Path("/var/lib/mien/coordinator"))
    keys = (home.ca_key_path, home.store_key_path, home.operator_key_path, home.old_registrar_key_path)
    assert hidden == [f"-{path}" for path in keys]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_a_unit(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    programs = Path(sys.executable).parent
    installed = tmp_path / path.name
    installed.write_text(path.read_text(encoding="utf-8").replace("/opt/mien/bin", str(programs)), encoding="utf-8")
    for arguments in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=30"]):
        done = subprocess.run(["systemd-analyze", *arguments, str(installed)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr or done.stdout
        assert "Unknown" not in done.stderr, done.stderr


class TestBackups:
    """The unit that a timer starts every night, as a copy of it for each of both programs."""

    @staticmethod
    def of(program: str) -> str:
        """Return the unit's text for a program, as systemd reads it."""
        return BACKUP.read_text(encoding="utf-8").replace("%i", program).replace("%%", "%")

    @pytest.mark.parametrize("program", ["coordinator", "registrar"])
    def test_its_command_makes_a_backup_where_old_ones_go(self, program: str, tmp_path: Path) -> None:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.read_string(self.of(program))
        service = parser["Service"]
        home, there = service["ReadWritePaths"].split()
        user = f"mien-{program}"
        assert (service["User"], service["Group"]) == (user, user)
        folders = [line.split() for line in (DEPLOY / "systemd/mien.tmpfiles.conf").read_text().splitlines()]
        assert ["d", home, "0700", user, user, "-"] in folders
        assert ["d", there, "0700", user, user, "90d"] in folders
        made = Path(call_init(program, tmp_path))
        (tmp_path / "password").write_text("correct horse battery\n")
        (tmp_path / "backups").mkdir()
        shell, option, line = shlex.split(service["ExecStart"])
        for name, real in {
            "/opt/mien/bin": Path(sys.executable).parent,
            home: made,
            there: tmp_path / "backups",
        }.items():
            assert name in line
            line = line.replace(name, str(real))
        done = subprocess.run(
            [shell, option, line], env={"CREDENTIALS_DIRECTORY": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (file,) = (tmp_path / "backups").iterdir()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{6}\.mien", file.name)

    def test_systemd_accepts_unit_and_timer(self, tmp_path: Path) -> None:
        if shutil.which("systemd-analyze") is None:
            pytest.skip("systemd-analyze is not here")
        text = BACKUP.read_text(encoding="utf-8")
        (tmp_path / BACKUP.name).write_text(text, encoding="utf-8")
        timer = BACKUP.with_suffix(".timer")
        shutil.copy(timer, tmp_path / timer.name)
        units = [str(tmp_path / name.replace("@", "@coordinator")) for name in (BACKUP.name, timer.name)]
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Unknown" not in done.stderr, done.stderr


def call_init(program: str, folder: Path) -> str:
    """Make a server's folder and return where it is."""
    options = {"coordinator": ["--address", "localhost:7443"],
               "registrar": ["--address", "localhost:7440", "--coordinator-address", "localhost:7443"]}  # fmt: skip
    call(f"mien-{program}", "init", "--home", folder / program, *options[program])
    return str(folder / program)


class TestCompose:
    """The compose file: what it starts exists, and has the time and the place that it needs."""

    FILE = DEPLOY / "compose.yaml"

    def test_services(self) -> None:
        file = yaml.safe_load(self.FILE.read_text(encoding="utf-8"))
        image = dict(instructions())
        assert file["services"].keys() == {"registrar", "coordinator"}
        assert (ROOT / file["services"]["registrar"]["build"]["dockerfile"]).is_file()
        published = set()
        for name, service in file["services"].items():
            check_command(service["command"])
            assert service["volumes"] == [f"{name}:{image['VOLUME']}"]
            assert name in file["volumes"]
            published |= {port.partition(":")[2] for port in service["ports"]}
            drains = {"coordinator": CoordinatorConfig("a:1"), "registrar": RegistrarConfig("a:1", "b:2")}[name].drain_s
            assert float(service["stop_grace_period"].removesuffix("s")) > 2 * drains
        assert published == set(image["EXPOSE"].split())
        variables = file["services"]["coordinator"]["environment"]
        known = {f"MIEN_COORDINATOR_{field.name}".upper() for field in dataclasses.fields(CoordinatorConfig)}
        assert variables.keys() <= known
        check = file["services"]["coordinator"]["healthcheck"]["test"][-1]
        assert f":{variables['MIEN_COORDINATOR_METRICS_PORT']}/readyz" in check
        compile(check, "healthcheck", "exec")

    def test_its_first_lines_are_commands_that_exist(self) -> None:
        text = self.FILE.read_text(encoding="utf-8").partition("\nname:")[0].replace("\\\n#", "")
        lines = [shlex.split(line[1:].partition(" > ")[0]) for line in text.splitlines() if "docker compose" in line]
        runs = [words[words.index("run") :] for words in lines if "run" in words]
        assert len(runs) == 5
        for words in runs:
            for program in PROGRAMS:
                if program in words:
                    check_command(words[words.index(program) :])


INSTRUCTION = re.compile(r"^([A-Z]+) +(.*)$")


def instructions() -> list[tuple[str, str]]:
    """Return the container file's instructions, continuation lines joined."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [INSTRUCTION.match(line) for line in lines]
    assert all(found), lines
    return [(match[1], match[2]) for match in found if match is not None]


def test_the_container_file_copies_and_starts_what_exists() -> None:
    known = {"FROM", "WORKDIR", "RUN", "COPY", "USER", "VOLUME", "ENV", "EXPOSE", "STOPSIGNAL", "CMD"}
    found = instructions()
    assert {name for name, _ in found} <= known
    for name, rest in found:
        words = rest.split()
        if name == "COPY" and not words[0].startswith("--from="):
            assert all((ROOT / source).exists() for source in words[:-1]), rest
        if name == "RUN":
            assert all(isinstance(word, str) for word in json.loads(rest))
        if name == "CMD":
            check_command(json.loads(rest))
        if name == "ENV":
            names = {word.partition("=")[0] for word in words}
            assert names == {"PATH", "MIEN_COORDINATOR_HOME", "MIEN_REGISTRAR_HOME"}
    assert dict(found)["STOPSIGNAL"] == "SIGTERM"
    user = next(index for index, (name, _) in enumerate(found) if name == "USER")
    assert user < next(index for index, (name, _) in enumerate(found) if name == "CMD")
    ports = {CoordinatorConfig("a:7443").listens_at, "[::]:7440", RegistrarConfig("a:7440", "b:1").operators_listen}
    assert {port.rpartition(":")[2] for port in ports} == set(dict(found)["EXPOSE"].split())


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("extra", ["coordinator", "device"])
def test_the_image_holds_the_locked_packages_of_an_extra(extra: str) -> None:
    """The same versions as everywhere else, so that one lock fits the other; `make lock` writes all of them."""
    mine, all_ = pins(DEPLOY / f"requirements-{extra}.lock"), pins(ROOT / "requirements.lock")
    assert {name: version for name, version in mine.items() if all_.get(name) != version} == {}
    wanted = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"][extra]]
    assert {re.split(r"[\[<>=!~ ]", each)[0] for each in wanted} <= set(mine)
    assert "torch" not in mine
    assert f"requirements-{extra}.lock" in (DEPLOY / "Containerfile").read_text(encoding="utf-8")


def test_the_image_holds_every_package_and_no_program_that_needs_torch() -> None:
    found = instructions()
    copied = {rest.split()[0] for name, rest in found if name == "COPY"}
    assert {each.removesuffix("*") for each in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]} <= copied
    assert ("RUN", '["rm", "/opt/mien/bin/mien-sim"]') in found


class TestMonitoring:
    """Alarms and the dashboard of Prometheus and Grafana, over the metrics that there are."""

    RULES = DEPLOY / "monitoring/alerts.yml"
    DASHBOARD = DEPLOY / "monitoring/grafana.json"

    @staticmethod
    def expressions() -> dict[str, str]:
        """Return each expression of an alarm or a panel by where it stands."""
        rules = TestMonitoring.RULES.read_text(encoding="utf-8").split("- alert: ")[1:]
        found = {rule.split()[0]: rule.split(" expr: ")[1].split(" labels: ")[0] for rule in rules}
        panels = json.loads(TestMonitoring.DASHBOARD.read_text(encoding="utf-8"))["panels"]
        return found | {f"{p['title']} {t['refId']}": t["expr"] for p in panels for t in p.get("targets", ())}

    def test_they_name_metrics_and_labels_that_there_are(self) -> None:
        page = (ROOT / "docs/operator/production.md").read_text(encoding="utf-8")
        rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `mien_")]
        samples = {name.strip(" `"): set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
        assert "mien_rounds_total" in samples
        own = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"}
        for where, expression in self.expressions().items():
            for name, matched in re.findall(r"\b((?:mien|process)_\w+?)(?:_bucket)?(?:\{([^}]*)\}|\b)", expression):
                assert name in samples.keys() | own, (where, name)
                labels = set(re.findall(r"(\w+)\s*=", matched))
                assert labels <= samples.get(name, set()) | {"instance", "job"}, (where, name)

    def test_states_that_alarms_name_exist(self) -> None:
        known = {
            "outcome": {stage.value for stage in Stage},
            "state": {state.value for kind in (TaskState, RollOutState) for state in kind},
            "reason": {"internal", "cancelled"},
        }
        for where, expression in self.expressions().items():
            for label, values in re.findall(r'(outcome|state|reason)=~?"([^"]*)"', expression):
                assert set(values.split("|")) <= known[label], where

    def test_panels_of_the_dashboard_do_not_overlap(self) -> None:
        panels = json.loads(self.DASHBOARD.read_text(encoding="utf-8"))["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for at in (panel["gridPos"] for panel in panels)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert {x for x, _ in cells} == set(range(24))

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
    @pytest.mark.parametrize(
        "command", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")], ids=lambda c: c[1]
    )
    def test_prometheus_takes_them_and_alarms_go_off_as_meant(self, command: tuple[str, ...]) -> None:
        done = subprocess.run(
            ["promtool", *command], cwd=DEPLOY / "monitoring", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
    def test_prometheus_understands_every_panel(self, tmp_path: Path) -> None:
        panels = json.loads(self.DASHBOARD.read_text(encoding="utf-8"))["panels"]
        expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
        rules = [{"record": f"panel:{n}", "expr": each} for n, each in enumerate(expressions)]
        path = tmp_path / "panels.yml"
        path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
        done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
