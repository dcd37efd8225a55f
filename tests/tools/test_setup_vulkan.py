"""The set-up of Vulkan without a GPU: Debian's packages are unpacked beside the system."""

import ctypes
import importlib.util
import io
import json
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def vulkan() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vulkan", ROOT / "tools/setup/vulkan.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(*members: tuple[str, int, bytes | str]) -> bytes:
    """Return a package with files (bytes) and links (str), each with its name and mode."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, mode, content in members:
            member = tarfile.TarInfo(name)
            member.mode = mode
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    compressed = lzma.compress(data.getvalue())
    parts = [(b"debian-binary", b"2.0\n"), (b"data.tar.xz", compressed)]
    packed = b"!<arch>\n"
    for file, part in parts:
        size = str(len(part)).encode()
        header = file.ljust(16) + b"0".ljust(24) + b"0".ljust(8) + size.ljust(10) + b"`\n"
        packed += header + part + b"\n" * (len(part) % 2)
    return packed


def test_files_and_links_of_a_package_are_unpacked(vulkan: ModuleType, tmp_path: Path) -> None:
    vulkan.unpack(
        package(
            ("./usr/lib/libz3.so.4.8", 0o644, b"code"),
            ("./usr/lib/libz3.so", 0o777, "libz3.so.4.8"),
            ("./usr/bin/glslc", 0o4755, b"program"),
        ),
        tmp_path,
    )
    assert (tmp_path / "usr/lib/libz3.so").read_bytes() == b"code"
    assert (tmp_path / "usr/bin/glslc").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "members",
    [(("../out", 0o644, b"x"),), (("./link", 0o777, "/etc"), ("./link/out", 0o644, b"x")),
     (("./link", 0o777, "../.."),)],
)  # fmt: skip
def test_nothing_is_written_outside_the_folder(
    vulkan: ModuleType, tmp_path: Path, members: tuple[tuple[str, int, bytes | str], ...]
) -> None:
    folder = tmp_path / "in" / "side"
    folder.mkdir(parents=True)
    vulkan.unpack(package(*members), folder)
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in ([], ["out"])
    assert all(folder in path.parents for path in tmp_path.rglob("out"))


def test_what_is_no_package_is_refused(vulkan: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(vulkan.SetupError, match="not an archive"):
        vulkan.unpack(b"<html>", tmp_path)


def test_the_drivers_c_library_is_used_where_the_systems_is_older(
    vulkan: ModuleType, tmp_path: Path
) -> None:
    python, own = tmp_path / "bin" / "python", tmp_path / "lib"
    old, new = (
        vulkan.python_with_driver(tmp_path / "v", python, own, version, tmp_path / "v/python")
        for version in ((2, 36), (2, 41))
    )
    assert f'--argv0 "{tmp_path}/v/python" "{python}" "$@"' in old
    # The system may have a library of the same name for a Python of another version.
    assert f"{tmp_path}/v/libc:{tmp_path}/v/driver:{own}:/lib/" in old
    assert "LD_LIBRARY_PATH" not in old  # programs that it starts are run by the system's
    assert f'LD_LIBRARY_PATH="{tmp_path}/v/driver" exec "{python}" "$@"' in new
    assert "/libc" not in new


def test_the_layer_for_waiting_is_used_unless_others_are_named(
    vulkan: ModuleType, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    shell = 'echo "$VK_INSTANCE_LAYERS $VK_ADD_LAYER_PATH"'
    content = vulkan.python_with_driver(tmp_path, Path("/bin/sh"), tmp_path, (2, 41), script)
    vulkan.write_program(script, content)

    def variables(**given: str) -> str:
        command = [str(script), "-c", shell]
        return subprocess.run(
            command, env=given, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert variables() == f"VK_LAYER_TAMPU_waiting {tmp_path}/layers"
    others = variables(VK_INSTANCE_LAYERS="VK_LAYER_other", VK_ADD_LAYER_PATH="/other")
    assert others == "VK_LAYER_other /other"


def test_a_layer_is_compiled_with_its_manifest(vulkan: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "answers.c"
    source.write_text("int answer(void) { return 85; }")
    vulkan.compile_layer(source, "VK_LAYER_answers", tmp_path / "layers", tmp_path)
    manifest = json.loads((tmp_path / "layers" / "VK_LAYER_answers.json").read_text())
    assert manifest["layer"]["name"] == "VK_LAYER_answers"
    assert ctypes.CDLL(manifest["layer"]["library_path"]).answer() == 85
    source.write_text("no code")
    with pytest.raises(vulkan.SetupError, match=r"answers\.c does not compile: .*error"):
        vulkan.compile_layer(source, "VK_LAYER_answers", tmp_path / "layers", tmp_path)


def test_each_package_has_its_folder_its_hash_and_its_place(vulkan: ModuleType) -> None:
    listed = vulkan.packages(vulkan.PACKAGES.read_text())
    assert {folder for folder, _, _ in listed} == {"build", "driver", "libc"}
    assert all(len(bytes.fromhex(digest)) == 32 for _, digest, _ in listed)
    assert all(path.startswith("pool/main/") and path.endswith(".deb") for _, _, path in listed)


@pytest.mark.slow
def test_every_test_of_the_lists_exists() -> None:
    files = ["tests/vulkan.txt", "tests/vulkan_f16.txt"]
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "--collect-only"]
    found = subprocess.run(
        [*command, *(f"@{file}" for file in files)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    for file in files:
        listed = (ROOT / file).read_text().split()
        assert all(name in found.stdout for name in listed)
        assert len(listed) == len(set(listed))
