"""`tampu ray`: replicas of models on many machines."""

from __future__ import annotations

import signal
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.errors import SettingsError
from tampu.settings.address import Address
from tampu.settings.settings import Settings

if TYPE_CHECKING:
    from tampu.cluster.config import ClusterConfig

RAY_VERSION = "2.60"

ray_app = typer.Typer(help="Run replicas of models on many machines.", rich_markup_mode=None)

NoAuth = Annotated[
    bool,
    typer.Option(
        "--insecure-no-auth", help="Accept requests from other machines without an API key."
    ),
]


@ray_app.callback()
def ray_options() -> None:
    """Run replicas of models on many machines, with Ray Serve."""


@ray_app.command("up")
def up_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model name or GGUF file.")],
    replicas: Annotated[int, typer.Option(help="How many at first, and at least.")] = 1,
    max_replicas: Annotated[
        int | None, typer.Option(help="How many at most, if many requests wait.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Of a Ray cluster, or auto (default: start one on this machine)."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (default: TAMPU_HOST or 127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port (default: 11434).")
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(help="CPUs of a replica (default: an equal share).")
    ] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of a replica.")] = 0,
    pull: Annotated[
        bool, typer.Option("--pull", help="Pull the model on each node that does not have it.")
    ] = False,
    insecure_no_auth: NoAuth = False,
) -> None:
    """Serve replicas of a model until Ctrl-C, with the APIs of `tampu serve`."""
    from tampu.cluster.config import ClusterConfig, DeployedModel

    settings = Settings.from_environment()
    given = DeployedModel(
        model=str(Path(model).resolve()) if Path(model).is_file() else model,
        replicas=replicas,
        max_replicas=max_replicas,
        cpus=cpus,
        gpus=gpus,
    )
    config = ClusterConfig(
        models=(given,),
        host=host or settings.address.host,
        port=port or settings.address.port,
        pull=pull,
    )
    config.check()
    _deploy(config, settings, address, is_allowed=insecure_no_auth)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    from tampu.cluster.deploying import stop

    stop()


@ray_app.command("deploy")
def deploy_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file: what is deployed.")],
    address: Annotated[str, typer.Option(help="Of the Ray cluster.")] = "auto",
    insecure_no_auth: NoAuth = False,
) -> None:
    """Deploy models to a running Ray cluster, or change what is deployed."""
    require_ray()
    from tampu.cluster.config import read_config

    settings = Settings.from_environment()
    _deploy(read_config(file), settings, address, is_allowed=insecure_no_auth)


def require_ray() -> None:
    """Check that Ray is installed, in the version that tampu is tested with.

    Raises:
        SettingsError: with the command that installs it.
    """
    try:
        found = version("ray")
    except PackageNotFoundError:
        raise SettingsError("Ray is not installed: pip install 'tampu[ray]'") from None
    if not found.startswith(f"{RAY_VERSION}."):
        raise SettingsError(
            f"Ray {found} is installed, and tampu needs {RAY_VERSION}: pip install 'tampu[ray]'"
        )


def _deploy(
    config: ClusterConfig, settings: Settings, address: str | None, *, is_allowed: bool
) -> None:
    """Join a cluster, or start one, and deploy to it."""
    require_ray()
    from tampu.server.options import server_options
    from tampu.server.serve import check_exposure

    options = server_options(settings, [config.host])
    has_keys = bool(options.use_api_keys or options.api_keys or options.keys)
    check_exposure(config.host, has_keys=has_keys, is_allowed=is_allowed)
    from tampu.cluster.deploying import LOCAL, connect, deploy

    connect(address or LOCAL)
    deployed = deploy(config, options, settings)
    print(f"Listening on {Address(config.host, config.port, 'http')}", file=sys.stderr)
    for each in deployed.models:
        number = (
            f"{each.replicas}" if each.most == each.replicas else f"{each.replicas} to {each.most}"
        )
        print(f"{each.model}: {number} replicas, {each.cpus:g} CPUs each", file=sys.stderr)
    sys.stderr.flush()
