"""The image, the manifests and the dashboard say what the code does; none of them is run here."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
from support.fake_runner import FakeStart

from tampu.cluster.config import ClusterConfig, DeployedModel
from tampu.errors import SettingsError
from tampu.server.options import ServerOptions
from tampu.settings.address import is_loopback
from tampu.settings.settings import Settings
from tests.server.conftest import Site

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = ROOT / "Dockerfile"
IMAGES = [DOCKERFILE, DEPLOY / "kubernetes" / "ray.Dockerfile"]
SERVER, RAY = DEPLOY / "kubernetes" / "tampu.yaml", DEPLOY / "kubernetes" / "rayservice.yaml"
PROBES = {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}


def documents(path: Path) -> dict[str, Any]:
    """The documents of a manifest by their kinds."""
    texts = path.read_text(encoding="utf-8").split("\n---\n")
    read = [msgspec.yaml.decode(text.encode()) for text in texts]
    found = {each["kind"]: each for each in read}
    assert len(found) == len(read)
    return found


def instructions() -> list[list[str]]:
    """The words of the instructions of the image's last stage."""
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    last = max(number for number, line in enumerate(lines) if line.startswith("FROM "))
    return [shlex.split(line) for line in lines[last:]]


def image_environment() -> dict[str, str]:
    [words] = [each[1:] for each in instructions() if each[0] == "ENV"]
    return dict(word.split("=", 1) for word in words)


def environment(container: dict[str, Any]) -> dict[str, str]:
    """The variables of a container; a secret has a text of its own."""
    return {each["name"]: each.get("value", "secret") for each in container["env"]}


def pod_of_server() -> tuple[dict[str, Any], dict[str, Any]]:
    pod = documents(SERVER)["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return pod, container


def pods_of_ray() -> list[dict[str, Any]]:
    cluster = documents(RAY)["RayService"]["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_knows_each_field(version: str) -> None:
    for document in documents(SERVER).values():
        kubernetes_validate.validate(document, version, strict=True)
    for pod in pods_of_ray():
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": pod}
        kubernetes_validate.validate(whole, version, strict=True)


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_hadolint_finds_nothing(image: Path) -> None:
    command = [str(Path(sys.executable).with_name("hadolint")), "--no-color", str(image)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_the_images_settings_are_the_servers() -> None:
    given = image_environment()
    settings = Settings.from_environment(given)
    [exposed] = [each[1] for each in instructions() if each[0] == "EXPOSE"]
    assert settings.address.port == int(exposed)
    assert not is_loopback(settings.address.host)
    [data] = [Path(each[1]) for each in instructions() if each[0] == "VOLUME"]
    for folder in (settings.models, settings.cache, settings.state, Path(given["HOME"])):
        assert folder.is_relative_to(data)


def test_the_image_is_not_run_by_root() -> None:
    [user] = [each[1] for each in instructions() if each[0] == "USER"]
    pod, _ = pod_of_server()
    security = pod["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["runAsUser"] > 0
    assert security["runAsNonRoot"]


def test_pods_of_ray_write_to_their_claim_and_are_not_run_by_root() -> None:
    for pod in pods_of_ray():
        security = pod["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["fsGroup"] == security["runAsGroup"]
        [container] = pod["containers"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_only_the_wheel_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert "*" in lines
    for path in IMAGES:
        text = path.read_text(encoding="utf-8")
        copied = re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE)
        assert copied == kept, path.name


def test_the_root_may_be_read_only() -> None:
    pod, container = pod_of_server()
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert mounted.keys() == {"/data", "/tmp"}
    volumes = {each["name"]: each for each in pod["volumes"]}
    claim = documents(SERVER)["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes[mounted["/data"]]["persistentVolumeClaim"]["claimName"] == claim
    assert volumes.keys() == set(mounted.values())


def test_the_service_finds_the_server_at_its_port() -> None:
    found = documents(SERVER)
    pod, container = pod_of_server()
    settings = Settings.from_environment(image_environment() | environment(container))
    [port], [served] = container["ports"], found["Service"]["spec"]["ports"]
    assert port["containerPort"] == served["port"] == settings.address.port
    assert served["targetPort"] == port["name"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert pod["terminationGracePeriodSeconds"] > settings.drain_s


def test_probes_ask_routes_that_need_no_key(tmp_path: Path) -> None:
    _, container = pod_of_server()
    options = ServerOptions(api_keys=("secret",), hosts=("0.0.0.0",))
    probes = [container[name]["httpGet"] for name in PROBES]
    port = container["ports"][0]["name"]
    assert probes == [{"path": path, "port": port} for path in PROBES.values()]
    host = {"headers": {"host": "10.1.2.3:11434"}}  # the pod's address, as kubelet sends it
    paths = [*PROBES.values(), "/v1/models"]
    site = Site(tmp_path, FakeStart(), options)
    answers = site.call(*(("GET", path, host) for path in paths))
    assert [each.status_code for each in answers] == [200, 200, 200, 401]


def test_a_service_of_the_same_name_gives_no_settings() -> None:
    """Kubernetes sets TAMPU_PORT in each pod beside a service `tampu`, unless told otherwise."""
    with pytest.raises(SettingsError, match="TAMPU_PORT"):
        Settings.from_environment({"TAMPU_PORT": "tcp://10.0.0.1:11434"})
    pod, _ = pod_of_server()
    assert all(each["enableServiceLinks"] is False for each in (pod, *pods_of_ray()))


def test_a_ray_service_deploys_what_the_builder_takes() -> None:
    spec = documents(RAY)["RayService"]["spec"]
    serve = msgspec.yaml.decode(spec["serveConfigV2"].encode())
    [application] = serve["applications"]
    module, _, name = application["import_path"].partition(":")
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    assert f"\ndef {name}(" in Path(found.origin).read_text(encoding="utf-8")
    model = msgspec.convert(application["args"], DeployedModel)
    ClusterConfig(models=(model,)).check()
    workers = spec["rayClusterConfig"]["workerGroupSpecs"]
    cpus = sum(each["replicas"] * int(each["rayStartParams"]["num-cpus"]) for each in workers)
    assert model.cpus is not None
    assert model.most * model.cpus <= cpus
    head = pods_of_ray()[0]["containers"][0]
    settings = Settings.from_environment(environment(head))
    ports = {each["name"]: each["containerPort"] for each in head["ports"]}
    assert ports["serve"] == serve["http_options"]["port"] == settings.address.port
    assert all(pod["containers"][0]["env"] == head["env"] for pod in pods_of_ray())


def test_ray_has_one_version_everywhere() -> None:
    version = documents(RAY)["RayService"]["spec"]["rayClusterConfig"]["rayVersion"]
    assert f"ray[serve]=={version}" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    image = IMAGES[1].read_text(encoding="utf-8")
    assert f"FROM rayproject/ray:{version}-py311\n" in image


def test_each_metric_of_the_dashboard_is_exported(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "tampu.json").read_text(encoding="utf-8"))
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    texts += [each["query"] for each in dashboard["templating"]["list"]]
    used = {name for text in texts for name in re.findall(r"\b(?:tampu_|llamacpp:)\w+", text)}
    [answer] = Site(tmp_path, FakeStart(), ServerOptions()).call(("GET", "/metrics", {}))
    told = exported(answer.text)
    assert len(used) > 10
    assert used <= told, used - told
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def exported(text: str) -> set[str]:
    """The names in what Prometheus reads, also those that have no values yet."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        found |= (
            {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
        )
    return found
