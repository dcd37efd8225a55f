"""The project's own tests on the device: sequences, prefixes, shifts, adapters, states, caches.

They are those of tests/gpu.txt, which need one device.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from tools.gpu_bundle.report import print_row

SOURCE = Path(__file__).parents[3]
PLUGINS = ("pytest", "pytest_timeout", "hypothesis")
SMALL = "a_gpu_computes_what_the_cpu_computes"


def main() -> None:
    """Run them and print the failed ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--skip", nargs="*", default=())
    given = parser.parse_args()
    if given.backend == "cpu":
        print_row("tests on a device", "not run: the CPU is what they compare with")
        return
    if missing := [name for name in PLUGINS if find_spec(name) is None]:
        print_row("tests on a device", f"not run: this Python has no {', '.join(missing)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        chosen = ["-k", SMALL] if given.small else []
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "--rootdir", str(SOURCE), "-c", str(SOURCE / "pytest.ini"),
            "--devices", "one", f"--junitxml={results}", *chosen,
            f"@{SOURCE / 'tests' / 'gpu.txt'}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SOURCE)
        if not results.is_file():
            said = (done.stdout + done.stderr).strip().splitlines()[-3:]
            how = f"pytest ended with {done.returncode}: {' / '.join(said)}"
            print_row("tests on a device", how, passed=False)
            return
        cases = list(ElementTree.parse(results).iter("testcase"))
    failed = [case for case in cases if len(case)]
    count = f"{len(cases) - len(failed)} of {len(cases)} passed"
    print_row("tests on a device", count, passed=bool(cases) and not failed)
    for case in failed:
        message = (case[0].get("message") or case[0].tag)[:300]
        print_row(case.get("name", ""), message, passed=False)


if __name__ == "__main__":
    main()
