"""The Helm chart, as helm renders it: the image's commands, ports and places, and no password in it."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.home.config import CoordinatorConfig
from coordinator.registrar.config import RegistrarConfig
from tests.deploy.test_deploy import DEPLOY, PROGRAMS, check_command, instructions

CHART = DEPLOY / "helm/mien"
IMAGE = ("image.repository=registry.example/mien", "image.tag=1")
SERVERS = {"coordinator": CoordinatorConfig("a:1"), "registrar": RegistrarConfig("a:1", "b:2")}


def helm(verb: str, *arguments: object, values: tuple[str, ...] = IMAGE) -> subprocess.CompletedProcess[str]:
    """Return what helm answered; skips where it is not."""
    program = shutil.which("helm")
    if program is None:
        pytest.skip("helm is not here: nothing renders the chart")
    words = [program, verb, *map(str, arguments)]
    for value in values:
        words += ["--set", value]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def rendered(*values: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return each object by kind and name."""
    done = helm("template", "x", CHART, values=(*IMAGE, *values))
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def container(objects: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the only container of a server's pod."""
    (one,) = objects["StatefulSet", f"x-{name}"]["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = one
    return found


def test_helm_has_nothing_to_object() -> None:
    done = helm("lint", CHART, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


def test_servers_run_as_the_image_and_their_settings_want_it() -> None:
    objects, image = rendered(), dict(instructions())
    assert set(objects) == {(kind, f"x-{name}") for kind in ("Service", "StatefulSet") for name in SERVERS}
    published = set()
    for name, config in SERVERS.items():
        one, stateful = container(objects, name), objects["StatefulSet", f"x-{name}"]["spec"]
        pod = stateful["template"]["spec"]
        check_command(one["command"])
        assert one["image"] == "registry.example/mien:1"
        assert stateful["replicas"] == 1
        assert pod["terminationGracePeriodSeconds"] > 2 * config.drain_s
        assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == image["USER"]
        assert pod["enableServiceLinks"] is False  # MIEN_COORDINATOR_PORT would be taken for a setting
        assert {"name": "home", "mountPath": image["VOLUME"]} in one["volumeMounts"]
        assert [claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]] == ["home"]
        known = {f"MIEN_{name}_{field.name}".upper() for field in dataclasses.fields(config)}
        assert {each["name"] for each in one["env"]} - {"TMPDIR"} <= known
        service = objects["Service", f"x-{name}"]["spec"]
        assert service["selector"] == stateful["template"]["metadata"]["labels"]
        inside = {port["name"]: port["containerPort"] for port in one["ports"]}
        assert all(inside[port["targetPort"]] == port["port"] for port in service["ports"])
        published |= {str(port["port"]) for port in service["ports"]}
    assert published == set(image["EXPOSE"].split())


def test_the_probe_asks_where_health_is_told() -> None:
    one = container(rendered(), "coordinator")
    ports = {port["name"]: str(port["containerPort"]) for port in one["ports"]}
    asked = one["readinessProbe"]["httpGet"]
    told = {each["name"]: each["value"] for each in one["env"]}
    assert (asked["path"], ports[asked["port"]]) == ("/readyz", told["MIEN_COORDINATOR_METRICS_PORT"])


def test_urls_with_passwords_come_from_secrets_that_exist() -> None:
    objects = rendered(
        "coordinator.databaseUrlSecret.name=db",
        "registrar.storeUrlSecret.name=store",
        "coordinator.bucketSecret=bucket",
    )
    assert {kind for kind, _ in objects} == {"Service", "StatefulSet"}, "the chart makes no Secret"
    for name, setting, secret in (("coordinator", "DATABASE_URL", "db"), ("registrar", "STORE_URL", "store")):
        (found,) = [
            each for each in container(objects, name)["env"] if each["name"] == f"MIEN_{name.upper()}_{setting}"
        ]
        assert found["valueFrom"] == {"secretKeyRef": {"name": secret, "key": "url"}}
    assert container(objects, "coordinator")["envFrom"] == [{"secretRef": {"name": "bucket"}}]


def test_settings_become_variables_and_may_change_the_charts_own() -> None:
    env = container(
        rendered("coordinator.settings.drain_s=40", "coordinator.settings.metrics_host=10.0.0.1"), "coordinator"
    )["env"]
    told = {each["name"]: each["value"] for each in env}
    assert (told["MIEN_COORDINATOR_DRAIN_S"], told["MIEN_COORDINATOR_METRICS_HOST"]) == ("40", "10.0.0.1")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((), "no image is published"),
        (IMAGE[:1], "set image.tag"),
        ((*IMAGE, "coordinator.settings.database_url=u"), "name a Secret in coordinator.databaseUrlSecret"),
        ((*IMAGE, "registrar.settings.store_url=u"), "name a Secret in registrar.storeUrlSecret"),
    ],
)
def test_what_cannot_run_or_would_show_a_password_is_refused(values: tuple[str, ...], says: str) -> None:
    done = helm("template", "x", CHART, values=values)
    assert done.returncode != 0
    assert says in done.stderr


def test_the_notes_commands_exist_and_the_pods_wait_for_them(tmp_path: Path) -> None:
    """Notes are shown by an install alone, which needs a cluster: here they are a template of a copy."""
    chart = tmp_path / "mien"
    shutil.copytree(CHART, chart)
    notes = (chart / "templates/NOTES.txt").read_text(encoding="utf-8")
    wrapped = '{{- define "notes" -}}\n' + notes + '\n{{- end -}}\ntold: {{ include "notes" . | quote }}\n'
    (chart / "templates/notes.yaml").write_text(wrapped, encoding="utf-8")
    done = helm("template", "x", chart, "--show-only", "templates/notes.yaml", values=(*IMAGE, "setUp=true"))
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout)["told"]
    lines = [shlex.split(line) for line in told.splitlines() if " -- mien-" in line]
    assert [words[words.index("--") + 2] for words in lines] == ["init", "init", "trust-coordinator"]
    for words in lines:
        check_command(words[words.index("--") + 1 :])
    objects = rendered("setUp=true")
    for name in SERVERS:
        one = container(objects, name)
        assert not set(one["command"]) & set(PROGRAMS)
        assert "readinessProbe" not in one
