"""Wheels of what a GPU machine lacks, put beside this file: `run.sh --fetch`, on a machine with pip and the internet.

They are for Python 3.12 on Linux with x86-64. bitsandbytes is stripped to its library for one version of CUDA, and what is not needed to
run is left out of the others.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
WANTED = (
    "PyYAML",
    "bitsandbytes",
    "torchao",
    "cloudpickle",
    "trl",
    "datasets",
    "dill",
    "multiprocess",
    "xxhash",
    "pydantic",
    "pydantic_core",
    "annotated-types",
    "typing-inspection",
)
"""`constraints.txt` says the version where it has one. trl is the newest that takes the transformers of such a machine; newer typers need
pydantic."""
MOST_BYTES = 50 * 2**20
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34)] + ["manylinux2014_x86_64"]


def pinned(name: str) -> str:
    """Return the requirement as the constraints have it."""
    spelled = re.sub(r"[-_.]+", "-", name).lower()
    for line in CONSTRAINTS.read_text().splitlines():
        if re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() == spelled:
            return line.split(";")[0].strip()
    return name


def download(folder: Path, python: str) -> None:
    """Have pip download one wheel of each."""
    places = [word for platform in PLATFORMS for word in ("--platform", platform)]
    for name in WANTED:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += [
            "--implementation",
            "cp",
            "--python-version",
            python,
            *places,
            "--dest",
            str(folder),
            pinned(name),
        ]
        if subprocess.run(command, check=False).returncode:
            print(f"{name}: no wheel could be downloaded; what needs it will be skipped", file=sys.stderr)


def strip(wheel: Path, cuda: str) -> None:
    """Write a wheel anew without what a run does not need: libraries for other versions of CUDA, tests."""
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as made:
        for entry in given.infolist():
            if is_needed(entry.filename, cuda):
                made.writestr(entry, given.read(entry), zipfile.ZIP_DEFLATED)
    part.replace(wheel)


def is_needed(name: str, cuda: str) -> bool:
    """Return whether a file of a wheel is needed on a machine with this version of CUDA.

    >>> is_needed("bitsandbytes/libbitsandbytes_cuda130.so", "130"), is_needed("bitsandbytes/libbitsandbytes_cuda126.so", "130")
    (True, False)
    """
    if "/tests/" in name or name.startswith(("tests/", "test/", "benchmarks/")):
        return False
    library = re.search(r"libbitsandbytes_(\w+?)\.so", name)
    return library is None or library.group(1) in (f"cuda{cuda}", "cpu")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="run.sh --fetch", description="Wheels for a GPU machine without the internet."
    )
    parser.add_argument("--python", default="3.12", help="version of Python there")
    parser.add_argument("--cuda", default="130", help="version of CUDA of its torch")
    parser.add_argument("--dest", type=Path, default=HERE / "wheels")
    given = parser.parse_args()
    given.dest.mkdir(exist_ok=True)
    for old in given.dest.glob("*.whl"):
        old.unlink()
    download(given.dest, given.python)
    for wheel in given.dest.glob("*.whl"):
        strip(wheel, given.cuda)
    (given.dest / "python").write_text(given.python)  # by another one they are left alone
    sizes = {wheel.name: wheel.stat().st_size for wheel in sorted(given.dest.glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{size / 2**20:6.1f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total / 2**20:6.1f} MiB  in all")
    if total > MOST_BYTES:
        print(f"more than {MOST_BYTES / 2**20:.0f} MiB: they may not travel", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
