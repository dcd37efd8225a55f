"""The configuration of a deployment: models, and the number of replicas of each."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tampu.errors import SettingsError
from tampu.settings.type_errors import type_error

APPLICATION = "tampu"
INGRESS = "api"
REGISTRY = "adapters"


class DeployedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model and its replicas.

    Attributes:
        model: a name that each node's store has, or the path of a file that each node has.
        replicas: how many there are at first, and at least.
        max_replicas: how many there are at most, by the requests that wait; None: as `replicas`.
        cpus: CPUs that each replica reserves, and threads that it computes with; None: an equal
            share of the cluster's.
        gpus: GPUs that each replica reserves.
        adapters: that requests may choose, also as the name of a model: the file or folder of each
            by its name, a path, or a name in each node's folder of adapters.
        upscale_delay_s: how long there are more requests than slots before a replica is added.
        downscale_delay_s: how long the slots of fewer replicas are enough before one is taken
            away, with its cache.
    """

    model: str
    replicas: int = 1
    max_replicas: int | None = None
    cpus: float | None = None
    gpus: float = 0
    adapters: dict[str, str] = {}
    upscale_delay_s: float = 10
    downscale_delay_s: float = 600

    @property
    def most(self) -> int:
        """The maximum number of replicas."""
        return self.replicas if self.max_replicas is None else self.max_replicas

    @property
    def deployment(self) -> str:
        """The name of its deployment: the model's, with the characters that Ray allows."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.model).strip("-")

    def check(self) -> None:
        """Check the values.

        Raises:
            SettingsError: naming the field.
        """
        if not self.model:
            raise SettingsError("model must be a name or a path")
        if self.replicas < 1:
            raise SettingsError(f"{self.model}: replicas must be 1 or more, not {self.replicas}")
        if self.most < self.replicas:
            raise SettingsError(
                f"{self.model}: max_replicas must be {self.replicas} or more, as replicas, not "
                f"{self.most}"
            )
        if self.cpus is not None and self.cpus <= 0:
            raise SettingsError(f"{self.model}: cpus must be more than 0, not {self.cpus:g}")
        if self.gpus < 0:
            raise SettingsError(f"{self.model}: gpus must not be negative, and it is {self.gpus:g}")
        for name in ("upscale_delay_s", "downscale_delay_s"):
            if (seconds := getattr(self, name)) < 0:
                raise SettingsError(f"{self.model}: {name} must be 0 or more, not {seconds:g}")


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is deployed.

    Attributes:
        models: with their replicas.
        ingresses: processes that speak HTTP's APIs, one on the head, or more on as many nodes; each
            counts keys' limits for itself.
        context: the context length of each slot; None: that of the settings.
        slots: requests that a replica computes at once; None: that of the settings.
        host: the address at which ingresses listen.
        port: their port.
        pull: whether each node pulls the models that it does not have.
    """

    models: tuple[DeployedModel, ...]
    ingresses: int = 1
    context: int | None = None
    slots: int | None = None
    host: str = "127.0.0.1"
    port: int = 11434
    pull: bool = False

    def check(self) -> None:
        """Check the values.

        Raises:
            SettingsError: naming the field.
        """
        if not self.models:
            raise SettingsError("models is empty: name one at least")
        if self.ingresses < 1:
            raise SettingsError(f"ingresses must be 1 or more, not {self.ingresses}")
        names = [each.deployment for each in self.models]
        self._check_adapters()
        for model in self.models:
            model.check()
            if names.count(model.deployment) > 1 or model.deployment in ("", INGRESS, REGISTRY):
                raise SettingsError(f"{model.model}: another deployment has the same name")

    def _check_adapters(self) -> None:
        taken = {each.model for each in self.models}
        for model in self.models:
            for name, file in model.adapters.items():
                if not (name and file):
                    raise SettingsError(f"{model.model}: adapters need a name and a file")
                if name in taken:
                    raise SettingsError(f"{model.model}: adapters: {name!r} is there already")
                taken.add(name)

    def with_cpus(self, total: float) -> ClusterConfig:
        """Return the configuration with the CPUs of each replica.

        Args:
            total: CPUs of the cluster.

        Raises:
            SettingsError: if there are too few.
        """
        stated = sum(each.most * each.cpus for each in self.models if each.cpus is not None)
        others = sum(each.most for each in self.models if each.cpus is None)
        share = float(int((total - stated) // others)) if others else 0.0
        models = [
            msgspec.structs.replace(each, cpus=max(share, 1.0) if each.cpus is None else each.cpus)
            for each in self.models
        ]
        wanted = sum(each.replicas * (each.cpus or 0) for each in models)
        if wanted > total:
            raise SettingsError(
                f"the replicas need {wanted:g} CPUs, and the cluster has {total:g}: start "
                "fewer, or set cpus (--cpus) to a part of one"
            )
        return msgspec.structs.replace(self, models=tuple(models))


def read_config(path: Path) -> ClusterConfig:
    """Return the configuration in a YAML file.

    Raises:
        SettingsError: if it cannot be read, or is invalid.
    """
    try:
        return parse_config(path.read_bytes(), str(path))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error


def parse_config(text: bytes, name: str) -> ClusterConfig:
    """Return the configuration of a YAML text; `name` is where it is from.

    Raises:
        SettingsError: if it is invalid.
    """
    try:
        config = msgspec.yaml.decode(text, type=ClusterConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name}: {type_error(error, 'the configuration')}") from None
    except msgspec.DecodeError as error:
        raise SettingsError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    config.check()
    return config
