"""The time of `tampu list`, and the speed of a pull beside curl for the same blob.

Run it alone: `python benchmarks/store.py`. The pull is from Debian's docker-registry on this
machine (`sh tools/setup/registry.sh .venv` gets it), in turns with curl. A pull hashes what comes
and makes it last on the disk; curl does neither, so it is measured with `sync` after it, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tampu.errors import RegistryError
from tampu.store import Descriptor, Manifest, Media, ModelConfig, ModelName, Store
from tampu.store.manifests import CONFIG_TYPE, encode_config
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.pull import pull
from tampu.store.registry.push import push

CHUNK = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--connections", type=int, default=RemoteOptions().connections)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_list(Path(folder), arguments.models, arguments.repetitions)
        measure_pull(
            Path(folder), arguments.megabytes, arguments.repetitions, arguments.connections
        )


def measure_list(folder: Path, count: int, repetitions: int) -> None:
    """Print the time of the command with a number of models."""
    store = Store(folder / "many")
    for number in range(count):
        add_model(store, ModelName.parse(f"runa/model-{number}:q4_k_m"), [b"%d" % number])
    program = shutil.which("tampu", path=str(Path(sys.executable).parent)) or "tampu"
    environment = {"HOME": str(folder), "TAMPU_MODELS": str(store.root), "PATH": "/usr/bin:/bin"}

    def work() -> None:
        subprocess.run([program, "list"], env=environment, stdout=subprocess.DEVNULL, check=True)

    times = sorted(elapsed(work) for _ in range(4 * repetitions))
    print(f"tampu list, {count} models: {times[0] * 1e3:.0f} ms at best, ", end="")
    print(f"{statistics.median(times) * 1e3:.0f} ms median")


def measure_pull(folder: Path, megabytes: int, repetitions: int, connections: int) -> None:
    """Print the speeds of a pull and of curl, in turns."""
    with running_registry(folder / "registry") as host:
        name = ModelName.parse(f"http://{host}/runa/large")
        options = RemoteOptions(is_insecure=True, connections=connections)
        source = Store(folder / "source")
        model = add_model(source, name, (os.urandom(CHUNK) for _ in range(megabytes)))
        size = model.layers[0].size
        push_s = elapsed(lambda: list(push(source, name, options)))
        target = folder / "target"
        url = f"http://{host}/v2/{name.repository}/blobs/{model.layers[0].digest}"
        file = str(folder / "curl")
        curls, lasting, pulls = [], [], []
        for _ in range(repetitions):
            curls.append(elapsed(lambda: run("curl", "-s", "-o", file, url)))
            lasting.append(curls[-1] + elapsed(lambda: run("sync", file)))
            Path(file).unlink()
            pulls.append(elapsed(lambda: list(pull(Store(target), name, options))))
            shutil.rmtree(target)
        print(f"push of {size / 1e9:.2f} GB: {size / push_s / 1e6:.0f} MB/s")
        for what, times in (("curl", curls), ("curl and sync", lasting), ("pull", pulls)):
            best, median = size / min(times) / 1e6, size / statistics.median(times) / 1e6
            print(f"{what}: {best:.0f} MB/s at best, {median:.0f} median")
        for what, times in (("curl", curls), ("curl and sync", lasting)):
            ratios = [theirs / ours for theirs, ours in zip(times, pulls, strict=True)]
            best = min(times) / min(pulls)
            print(
                f"pull / {what}: {statistics.median(ratios):.2f} median of pairs, {best:.2f} best"
            )


def add_model(store: Store, name: ModelName, weights: Iterator[bytes] | list[bytes]) -> Manifest:
    """Write a model whose weights arrive in pieces."""
    with store.lease() as lease:
        with store.blobs.writer(lease) as writer:
            for piece in weights:
                writer.write(piece)
            layer = Descriptor(Media.MODEL, writer.commit(), writer.size)
        head = encode_config(ModelConfig(model_format="gguf"))
        config = Descriptor(CONFIG_TYPE, store.blobs.put(head, lease), len(head))
        manifest = Manifest(config=config, layers=[layer])
        store.write(name, manifest)
        return manifest


@contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Run the registry; yield its host."""
    own = Path(sys.prefix) / "docker-registry" / "usr" / "bin" / "docker-registry"
    program = shutil.which("docker-registry") or str(own)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{listener.getsockname()[1]}"
    folder.mkdir()
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\nhttp: {{addr: '{host}'}}\n"
    )
    with subprocess.Popen(
        [program, "serve", str(config)],
        env={"OTEL_TRACES_EXPORTER": "none", "HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for(host)
            yield host
        finally:
            process.terminate()


def wait_for(host: str) -> None:
    address, _, port = host.partition(":")
    for _ in range(200):
        with suppress(OSError), socket.create_connection((address, int(port)), 1):
            return
        time.sleep(0.05)
    raise RegistryError("docker-registry does not answer")


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def elapsed(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
