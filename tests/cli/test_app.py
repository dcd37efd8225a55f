"""The command as a whole: its version, its errors, `show`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tiny_gguf import write_gguf

from tampu.errors import ModelNotFoundError
from tampu.version import __version__
from tests.cli.conftest import Run


def test_the_table_of_commands_imports_no_command() -> None:
    program = (
        "import sys; import tampu.cli.app\n"
        "heavy = {'numpy', 'httpx', 'asyncio', 'sqlite3', 'tampu.ml.library', 'tampu.server'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version_with_other_options(run: Run) -> None:
    assert run("--debug", "--version") == (0, f"tampu version {__version__}\n", "")


def test_no_command_prints_help(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    for command in ("run", "serve", "show", "bench", "convert"):
        assert command in out


def test_missing_model_that_cannot_be_pulled_reports_why(run: Run) -> None:
    code, out, err = run("run", "127.0.0.1:1/x/nothing", "hi")
    assert (code, out) == (2, "")
    assert "not found (there are: demo, demo-draft, digits); it cannot be pulled: 127.0.0.1" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bogus"], "No such command 'bogus'. `tampu help` lists them."),
        (["help", "bogus"], "No such command 'bogus'. `tampu help` lists them."),
        (["help", "a\nb"], "No such command 'a\\nb'. `tampu help` lists them."),
        (["shwo"], "No such command 'shwo'. Did you mean 'show'?"),
        (["show"], "Missing argument 'MODEL'"),
        (["show", ""], "the name of the model is empty"),
        (["show", " "], "the name of the model is empty"),
        (["show", "x", "--bogus"], "No such option"),
        (["run", "x", "--contxt", "5"], "No such option: --contxt (did you mean --context?)"),
        (["serve", "--port", "99999"], "'--port': it must be less than or equal to 65535"),
        (["serve", "--model", __file__], f"not a GGUF file: {__file__}"),
        (["show", "dem"], "not found: did you mean demo? (there are: demo, demo-draft, digits)"),
        (["run", str(Path(__file__).parent), "x"], "is a folder without config.json: give a model"),
        (["show", "nowhere.gguf"], "nowhere.gguf: no such file"),
        (["show", "nothing"], "model 'nothing' not found"),
        (["run", "nothing.gguf", "hi"], "nothing.gguf: no such file"),
        (["run", "no thing", "hi"], "a model name must not contain spaces: 'no thing'"),
        (["run", "x", "hi", "--threads", "0"], "--threads"),
        (["run", "x", "hi", "-o", "foo"], "unknown option 'foo'; write name=value"),
        (["run", "x", "hi", "-o", "temprature=1"], "did you mean temperature?"),
        (["run", "x", "hi", "-o", "temperature=hot"], "temperature must be a number from 0 to 100"),
        (["run", "demo", "hi", "-o", "num_ctx=1"], "num_ctx must be an integer from 4 to"),
        (["run", "demo", "hi", "--engine", "none"], "must be one of auto, native, llamacpp"),
        (["run", "demo", "hi", "--think=much"], "must be true, false, low"),
        (["run", "demo", "hi", "--format", "xml"], "must be json, a JSON schema"),
        (["run", "x", "hi", "--num-gpu", "-2"], "--num-gpu"),
        (["run", "demo", "hi", "-o", "main_gpu=7"], "main_gpu 7 does not exist"),
        (["run", "demo", "hi", "-o", "n_cpu_moe=-1"], "n_cpu_moe must be "),
        (["run", "demo", "hi", "-o", "kv_offload=maybe"], "kv_offload must be true or false"),
        (
            ["run", "demo", "hi", "--deterministic", "--engine", "llamacpp"],
            "deterministic cannot be used with llama.cpp",
        ),
        (["serve", "--num-gpu", "many"], "--num-gpu"),
        (["serve", "--spec-type", "draft-eagle3"], "must be one of auto, none, ngram-simple"),
        (["serve", "--draft", "nowhere.gguf"], "nowhere.gguf: no such file"),
        (["run", "demo", "hi", "--draft", "nowhere.gguf"], "nowhere.gguf: no such file"),
        (["serve", "--host", "0.0.0.0"], "--insecure-no-auth"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--model", "nowhere.gguf"], "nowhere.gguf: no such file"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_2(
    run: Run, arguments: list[str], told: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert told in err


@pytest.mark.parametrize(
    ("arguments", "layers"), [((), 5), (("--num-gpu", "0"), 0), (("--num-gpu", "-1"), -1)]
)
def test_the_flag_of_layers_on_gpus_goes_before_the_setting(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    layers: int,
) -> None:
    served = []

    def serve(options: Any, listeners: list[Any], *_: object) -> None:
        served.append(options)
        for listener in listeners:
            listener.close()

    monkeypatch.setattr("tampu.server.serve.serve", serve)
    monkeypatch.setenv("TAMPU_NUM_GPU", "5")
    socket = tmp_path / "s"
    assert run("serve", "--socket", socket, *arguments)[0] == 0
    assert served[0].model.gpu_layers == layers


@pytest.mark.parametrize("command", [["show"], ["bench"], ["run"], ["quantize"], ["create"]])
def test_file_that_is_no_model_is_named_with_its_path(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("text")
    (tmp_path / "Modelfile").write_text("FROM ./m.gguf")
    more: dict[str, list[Any]] = {
        "run": [path, "hi"],
        "quantize": [path, tmp_path / "q.gguf", "q4_0"],
        "create": ["made", "-f", tmp_path / "Modelfile"],
    }
    code, _, err = run(*command, *more.get(command[0], [path]))
    assert (code, err) == (2, f"Error: not a GGUF file: {path}\n")


def test_an_option_of_embeddings_is_ignored_with_a_warning(run: Run) -> None:
    told = "warning: --dimensions has no effect: demo is not an embedding model\n"
    assert run("run", "demo", "What is 27 + 58?", "--dimensions", "3") == (0, "85\n", told)


@pytest.mark.parametrize("command", ["show", "bench", "quantize"])
def test_a_damaged_file_is_named(run: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:-1])
    more = [tmp_path / "q.gguf", "q4_0"] if command == "quantize" else []
    code, _, err = run(command, path, *more)
    assert code == 2
    assert err.startswith(f"Error: {path}: ")


def test_damaged_model_prints_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    for command in (["show"], ["run"]):
        code, _, err = run(*command, tmp_path / "m.gguf", *(["hi"] if command == ["run"] else []))
        assert code == 2
        assert err.startswith("Error: ")
        assert err.count("\n") == 1


def test_bench_compares_a_model_in_a_layout_of_its_own_with_its_peer(
    run: Run,
) -> None:
    quick = ["--tests", "pp8", "--repetitions", "1", "--threads", "1"]
    code, out, err = run("bench", "demo", "--peer", "llama.cpp", *quick)
    assert code == 0
    assert all(line.startswith("warning: the comparison is uneven") for line in err.splitlines())
    title, row, peer = out.splitlines()
    assert title.split() == ["test", "depth", "threads", "tokens/s", "peer", "ratio"]
    assert row.split()[0] == "pp8"
    assert all(float(value) > 0 for value in row.split()[3:])
    assert peer.startswith("peer: llama.cpp ")


def test_bench_says_that_a_depth_is_beyond_training(run: Run) -> None:
    quick = ["--tests", "pp1", "--depth", "2050", "--repetitions", "1"]
    code, _, err = run("bench", "demo", *quick)
    assert code == 0
    assert err == "warning: the model was trained with 2048 tokens, not 2051\n"


def test_debug_shows_the_traceback(run: Run) -> None:
    with pytest.raises(ModelNotFoundError):
        run("show", "nowhere.gguf", "--debug")


def test_a_bad_setting_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMPU_CONTEXT_LENGTH", "many")
    code, _, err = run("show", "nothing")
    assert code == 2
    assert "TAMPU_CONTEXT_LENGTH" in err


def test_a_port_in_use_is_an_error(run: Run) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        code, _, err = run("serve", "--port", other.getsockname()[1])
    assert code == 2
    assert "is another server running there?" in err


def test_a_model_is_shown(run: Run, tmp_path: Path) -> None:
    template = "line 1 \x1b[31m\nline 2\nline 3"
    path = write_gguf(tmp_path / "m.gguf", template=template)
    code, out, _ = run("show", path)
    assert code == 0
    assert out.startswith(
        "  Model\n"
        "    architecture        llama\n"
        "    parameters          640\n"
        "    context length      2048\n"
        "    embedding length    64\n"
        "    quantization        Q4_K_M\n"
        "    tensors             1\n"
        "    engine              native\n"
        "\n"
        "  Capabilities\n"
        "    completion\n"
        "\n"
        "  Template\n"
        "    line 1 [31m\n"
        "    line 2\n"
        "    ...\n"
        "\n"
        "  License\n"
        "    apache-2.0\n"
    )


def test_a_model_is_shown_as_json(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("show", write_gguf(tmp_path / "m.gguf"), "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["architecture"] == "llama"
    assert shown["metadata"]["llama.context_length"] == 2048
    assert shown["metadata"]["tokenizer.ggml.tokens"] is None


def test_the_devices_are_shown(run: Run) -> None:
    code, out, _ = run("devices")
    assert code == 0
    assert out.split()[:5] == ["DEVICE", "KIND", "PRODUCT", "FREE", "MEMORY"]
    assert "\nCPU.0     cpu" in out
    shown = json.loads(run("devices", "--json")[1])
    assert shown["threads"] >= 1
    cpu = shown["devices"][-1]
    assert (cpu["name"], cpu["kind"]) == ("CPU.0", "cpu")
    assert 0 < cpu["free_bytes"] <= cpu["total_bytes"]
    assert cpu["features"]
