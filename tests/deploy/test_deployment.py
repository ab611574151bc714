"""What stands under deploy/, read as its tools read it: no container engine or cluster is at hand where this runs."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from app.cli import cli
from app.main import create_app
from app.settings import PROFILE_VARIABLE, Server, profile_names, variables
from engine.config import ROOT
from engine.scripted import ScriptedEngine
from tests.conftest import settings_with

DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile.*[!e]"))
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
PORT = Server().port
DRAIN_SECONDS = Server().drain_seconds


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Name and argument of each instruction, continued lines joined and comments left out."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = (line.partition(" ") for line in text.splitlines() if line)
    return [(name, argument.strip()) for name, _, argument in lines]


def arguments(dockerfile: Path, name: str) -> list[str]:
    return [argument for each, argument in instructions(dockerfile) if each == name]


def environment(dockerfile: Path) -> dict[str, str]:
    return dict(word.split("=", 1) for line in arguments(dockerfile, "ENV") for word in shlex.split(line))


def documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((DEPLOY / name).read_text()) if document]


def deployment() -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [each for each in documents("kubernetes.yaml") if each["kind"] == "Deployment"]
    return found


def container() -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = deployment()["spec"]["template"]["spec"]["containers"]
    return found


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "omnihear.service")
    return parser


def routes() -> set[str]:
    return {getattr(route, "path", "") for route in create_app(settings_with(), engine=ScriptedEngine()).routes}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_setting_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"\bOMNIHEAR_[A-Z_]*[A-Z]", path.read_text()))

    assert named <= {*variables(), PROFILE_VARIABLE}


def test_yaml_parses() -> None:
    files = [path for path in FILES if path.suffix in (".yaml", ".yml")]

    assert len(files) >= 6
    for path in files:
        assert list(yaml.safe_load_all(path.read_text())), path


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
class TestDockerfile:
    def test_what_it_copies_is_there_and_passes_its_ignore_file(self, dockerfile: Path) -> None:
        ignore = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().splitlines()
        allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
        copied = {source for line in arguments(dockerfile, "COPY") for source in shlex.split(line)[:-1]}

        assert copied == allowed
        assert all((ROOT / source).exists() for source in copied)

    def test_it_holds_all_that_the_service_reads(self, dockerfile: Path) -> None:
        copied = {source for line in arguments(dockerfile, "COPY") for source in shlex.split(line)[:-1]}

        assert copied >= {"app", "engine", "configs", "models", "requirements", "pyproject.toml", "Makefile"}

    def test_it_makes_the_environment_as_people_do(self, dockerfile: Path) -> None:
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        backend = dockerfile.suffix.removeprefix(".")
        ((target, chosen),) = re.findall(r"\bmake (\w+) BACKEND=(\w+)", "\n".join(arguments(dockerfile, "RUN")))

        assert target in targets
        assert chosen == backend
        assert (ROOT / f"requirements/{backend}.txt").exists()

    def test_it_runs_a_command_that_exists_as_nobody_special(self, dockerfile: Path) -> None:
        (entry,), (command,) = arguments(dockerfile, "ENTRYPOINT"), arguments(dockerfile, "CMD")
        commands = set(get_command(cli).commands)  # type: ignore[attr-defined]

        assert yaml.safe_load(entry) == [".venv/bin/omnihear"]
        assert yaml.safe_load(command)[0] in commands
        assert arguments(dockerfile, "USER") == ["omnihear"]

    def test_its_port_profile_and_health_check_are_the_services(self, dockerfile: Path) -> None:
        (port,), (check,) = arguments(dockerfile, "EXPOSE"), arguments(dockerfile, "HEALTHCHECK")
        values = environment(dockerfile)

        assert port == values["OMNIHEAR_SERVER_PORT"] == str(PORT)
        assert f"http://127.0.0.1:{port}/health/live" in check
        assert "/health/live" in routes()
        assert values[PROFILE_VARIABLE] in profile_names()
        assert values["OMNIHEAR_SERVER_SPOOL_DIR"] in arguments(dockerfile, "VOLUME")[0].split()

    def test_the_values_it_sets_can_be_served(
        self, dockerfile: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from app.settings import load_settings

        for name, value in environment(dockerfile).items():
            # The folder is the image's.
            monkeypatch.setenv(name, str(tmp_path) if name == "OMNIHEAR_SERVER_SPOOL_DIR" else value)

        assert load_settings().server.host == "0.0.0.0"


def test_both_images_are_there() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.cuda"]


def test_compose_builds_what_is_there_and_publishes_on_this_machine_alone() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]

    for name in ("omnihear", "omnihear-cuda"):
        service = services[name]
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert service["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
        assert int(service["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS
        assert service["security_opt"] == ["no-new-privileges:true"]
    for service in services.values():
        for mount in service["volumes"]:
            source, *_ = mount.split(":")
            assert source in compose["volumes"] or (DEPLOY / source).exists(), mount
    assert "devices" in services["omnihear-cuda"]["deploy"]["resources"]["reservations"]


def test_prometheus_scrapes_what_is_served_and_waits_longer_than_the_engine_may() -> None:
    from engine.async_engine import STATUS_SECONDS

    (config,) = documents("prometheus/prometheus.yml")
    (compose,) = documents("compose.yaml")
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")

    assert host in compose["services"]
    assert int(port) == PORT
    assert job["metrics_path"] in routes()
    assert int(job["scrape_timeout"].removesuffix("s")) > STATUS_SECONDS
    for file in config["rule_files"]:
        assert (DEPLOY / "prometheus" / file).is_file()


def test_systemd_starts_the_command_and_gives_it_time_to_drain() -> None:
    service = unit()["Service"]
    program, command = shlex.split(service["ExecStart"])

    assert program == f"{service['WorkingDirectory']}/.venv/bin/omnihear"
    assert command in get_command(cli).commands  # type: ignore[attr-defined]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > DRAIN_SECONDS
    assert service["Restart"] == "on-failure"
    assert service["OOMPolicy"] == "continue"


def test_probes_are_the_services_and_each_does_its_own_part() -> None:
    found = container()
    (port,) = found["ports"]

    assert port["containerPort"] == PORT
    assert found["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": port["name"]}
    assert found["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": port["name"]}
    assert {"/health/live", "/health/ready"} <= routes()


def test_kubernetes_waits_for_the_drain() -> None:
    pause = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = deployment()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    assert grace > pause + DRAIN_SECONDS


def test_ports_labels_and_volumes_of_kubernetes_agree() -> None:
    (service,) = [each for each in documents("kubernetes.yaml") if each["kind"] == "Service"]
    (claim,) = [each for each in documents("kubernetes.yaml") if each["kind"] == "PersistentVolumeClaim"]
    template = deployment()["spec"]["template"]
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}

    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert deployment()["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] == container()["ports"][0]["name"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(PORT)
    assert template["metadata"]["annotations"]["prometheus.io/path"] in routes()
    assert {mount["name"] for mount in container()["volumeMounts"]} == set(volumes)
    assert volumes["models"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_pod_may_write_where_the_image_says_and_runs_as_its_user() -> None:
    dockerfile = DEPLOY / "Dockerfile.cuda"
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    user = deployment()["spec"]["template"]["spec"]["securityContext"]["runAsUser"]

    assert set(arguments(dockerfile, "VOLUME")[0].split()) <= mounts
    assert "/home/omnihear" in mounts
    assert any(f"--uid {user} omnihear" in line for line in arguments(dockerfile, "RUN"))


def test_the_keys_of_the_secret_are_where_the_service_looks() -> None:
    values = {variable["name"]: variable["value"] for variable in container()["env"]}
    (mount,) = [mount for mount in container()["volumeMounts"] if mount["name"] == "keys"]

    assert Path(values["OMNIHEAR_SECURITY_API_KEYS_FILE"]) == Path(mount["mountPath"]) / "keys"
    # A file mounted by `subPath` is never brought up to date, and no key could be revoked.
    assert "subPath" not in mount


def test_commands_in_the_comments_name_files_that_are_there() -> None:
    for path in FILES:
        for name in re.findall(r"-f (deploy/[\w.]+)", path.read_text()):
            assert (ROOT / name).is_file(), f"{path}: {name}"
