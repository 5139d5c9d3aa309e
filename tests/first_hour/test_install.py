"""The ways to install it, as the quick start has them, into an environment that has torch already.

What it needs besides is that of the environment that runs the tests, so that nothing large is downloaded: a package is put in alone,
and what an extra would bring is resolved against what is there, and the index for the rest.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
USED = """
import snugfit as sf, torch
step = sf.Step(torch.nn.Linear(2, 2), sf.AdamW())
print(step((torch.ones(2, 2), torch.tensor([0, 1]))).loss > 0, sf.__file__)
"""
pytestmark = pytest.mark.release


def pip(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    python = environment / "bin" / "python"
    return subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *arguments],
        cwd=environment.parent,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment without Snugfit, in which torch and all else are found."""
    place = tmp_path / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    (own / "there.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "snugfit")], check=True)
    return place


@pytest.fixture
def wheel(environment: Path) -> str:
    made = pip(environment, "wheel", "-q", "--no-deps", "-w", "dist", "./snugfit")
    assert made.returncode == 0, made.stderr
    (path,) = (environment.parent / "dist").glob("*.whl")
    return str(path)


@pytest.mark.parametrize("way", ["clone", "wheel", "git"])
def test_each_way_to_install_it_gives_a_command_and_a_package_that_trains(
    environment: Path, wheel: str, way: str
) -> None:
    source = {
        "clone": "./snugfit[text]",
        "wheel": f"{wheel}[text]",
        "git": f"snugfit[text] @ git+file://localhost{environment.parent / 'snugfit'}",
    }[way]
    done = pip(environment, "install", "-q", "--no-deps", source)
    assert done.returncode == 0, done.stderr
    for arguments, said in (
        (["bin/snugfit", "--version"], PROJECT["version"]),
        (["bin/snugfit", "recipe", "train.epochs"], "train.epochs"),
        (["bin/python", "-c", USED], f"True {environment}"),
    ):
        command = [str(environment / arguments[0]), *arguments[1:]]
        answer = subprocess.run(
            command, cwd=environment.parent, capture_output=True, text=True, check=True, env={"PATH": ""}
        )
        assert said in answer.stdout.replace("tensor(True)", "True"), answer


@pytest.mark.parametrize("extra", sorted({*PROJECT["optional-dependencies"]} - {"dev", "bench"}))
def test_each_extra_alone_can_be_installed_and_leaves_torch_as_it_is(
    environment: Path, wheel: str, extra: str
) -> None:
    done = pip(environment, "install", "--dry-run", f"{wheel}[{extra}]")
    assert done.returncode == 0, done.stderr
    would = done.stdout.rpartition("Would install")[2].split()
    assert any(name.startswith("snugfit-") for name in would), done.stdout
    # a torchvision is built for one release of torch, and brings that
    assert extra in ("timm", "torchvision") or not any(name.startswith("torch-") for name in would), would


def test_the_quick_start_has_each_way() -> None:
    for command in ("'./snugfit[text,mlflow]'", "'snugfit[text] @ git+", "'dist/snugfit-"):
        assert f"pip install {command}" in PAGE
