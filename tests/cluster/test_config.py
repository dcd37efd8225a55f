"""What is deployed: the file, its errors, and the CPUs of replicas."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tampu.cluster.config import ClusterConfig, DeployedModel, parse_config, read_config
from tampu.errors import SettingsError

FILE = b"""
models:
  - model: demo
    replicas: 2
  - model: library/qwen3:0.6b
    max_replicas: 4
    cpus: 0.5
port: 8000
"""


def test_a_file_says_what_is_deployed() -> None:
    config = parse_config(FILE, "config.yaml")
    first, second = config.models
    assert (first.deployment, first.replicas, first.most) == ("demo", 2, 2)
    assert (second.deployment, second.replicas, second.most) == ("library-qwen3-0.6b", 1, 4)
    assert (config.host, config.port, config.ingresses) == ("127.0.0.1", 8000, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"models: []", "models is empty"),
        (b"{}", "models is missing"),
        (b"models: 3", "models must be a list"),
        (b"a: [", "config.yaml is not YAML"),
        (b"models: [{model: demo}]\nreplica: 3", "replica"),
        (b"models: [{model: ''}]", "model must be a name or a path"),
        (b"models: [{model: demo, replicas: 0}]", "demo: replicas must be 1 or more, not 0"),
        (b"models: [{model: demo, replicas: two}]", "replicas must be"),
        (
            b"models: [{model: demo, replicas: 3, max_replicas: 2}]",
            "max_replicas must be 3 or more",
        ),
        (b"models: [{model: demo, cpus: 0}]", "cpus must be more than 0"),
        (b"models: [{model: demo, gpus: -1}]", "gpus must not be negative"),
        (b"models: [{model: demo, upscale_delay_s: -1}]", "upscale_delay_s must be 0 or more"),
        (b"models: [{model: demo, downscale_delay_s: -1}]", "downscale_delay_s must be 0 or more"),
        (b"models: [{model: demo}, {model: demo}]", "another deployment has the same name"),
        (b"models: [{model: api}]", "another deployment has the same name"),
        (
            b"models: [{model: demo, adapters: {demo: a.gguf}}]",
            "demo: adapters: 'demo' is there already",
        ),
        (
            b"models: [{model: a, adapters: {x: x}}, {model: b, adapters: {x: x}}]",
            "b: adapters: 'x' is there already",
        ),
        (b"models: [{model: a, adapters: {x: ''}}]", "a: adapters need a name and a file"),
        (b"models: [{model: demo}]\ningresses: 0", "ingresses must be 1 or more"),
    ],
)
def test_an_invalid_file_is_one_line(text: bytes, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_config(text, "config.yaml")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_pages_files_are_valid() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    whole, for_ray, adapters = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert parse_config(whole.encode(), "page").models[0].replicas == 3
    [model] = parse_config(f"models:\n{adapters}".encode(), "page").models
    assert model.adapters == {"poet": "poet.gguf"}
    [application] = msgspec.yaml.decode(for_ray.encode())["applications"]
    assert msgspec.convert(application["args"], DeployedModel).replicas == 3


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no\.yaml cannot be read: No such file"):
        read_config(tmp_path / "no.yaml")


def test_replicas_share_the_cpus_that_others_leave() -> None:
    shared = DeployedModel(model="a", replicas=2)
    stated = DeployedModel(model="b", replicas=1, cpus=3)
    config = ClusterConfig(models=(shared, stated)).with_cpus(12)
    assert [each.cpus for each in config.models] == [4, 3]


def test_too_few_cpus_are_an_error_with_what_to_do() -> None:
    config = ClusterConfig(models=(DeployedModel(model="a", replicas=4),))
    with pytest.raises(SettingsError, match=r"need 4 CPUs, and the cluster has 2.*set cpus"):
        config.with_cpus(2)
