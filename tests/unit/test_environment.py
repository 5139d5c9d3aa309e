"""scripts/environment refuses in one line what cannot work, and installs only when something has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# An interpreter that notes what it is asked to install, and installs nothing.
NOTES_PIP = """case "$*" in
  *"pip --version"*) exit 0 ;;
  *"pip install"*) echo "$@" >> pip.log; exit ${PIP_STATUS:-0} ;;
esac"""


DEV = ["-e .[dev]", "--no-deps --target .venv/beside timm torchvision torchmetrics lightning-utilities"]


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{body}\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with an interpreter in .venv, into which nothing has been installed."""
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/environment", tree / "scripts/environment")
    (tree / "pyproject.toml").write_text("[project]\n")
    (tree / "constraints.txt").write_text("torch==2.13.0\n")
    script(tree / ".venv/bin/python", NOTES_PIP)
    script(tree / "bin/df", 'echo head; echo "disk 1 1 ${FREE_KB:-99000000} 1% /"; exit 0')
    return tree


def environment(tree: Path, extra: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{tree / 'bin'}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "PYTHON": sys.executable, "TORCH_INDEX": "", **variables}
    return subprocess.run(
        [str(tree / "scripts/environment"), extra], env=given, capture_output=True, text=True, check=False
    )


def installs(tree: Path) -> list[str]:
    """What pip was asked for since the last call."""
    log = tree / "pip.log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [line.partition("constraints.txt ")[2] for line in lines]


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    assert result.returncode == 1
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("Cannot set up .venv: ")
    return line


def test_an_interpreter_that_does_not_exist_is_one_line(tree: Path) -> None:
    assert "'python9.9' was not found. Install Python 3.11" in refusal(
        environment(tree, "dev", PYTHON="python9.9")
    )


def test_an_interpreter_that_does_not_run_is_one_line(tree: Path) -> None:
    assert "does not run" in refusal(environment(tree, "dev", PYTHON=script(tree / "bin/broken", "exit 127")))


def test_an_interpreter_below_3_11_is_one_line(tree: Path) -> None:
    old = script(
        tree / "bin/old", 'case "$2" in *print*) echo 3.10; exit 0 ;; *version_info*) exit 1 ;; esac'
    )
    assert "is Python 3.10, and 3.11 or newer is needed" in refusal(environment(tree, "dev", PYTHON=old))


def test_a_missing_venv_module_is_one_line(tree: Path) -> None:
    bare = script(tree / "bin/bare", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    assert "has no venv module" in refusal(environment(tree, "dev", PYTHON=bare))


def test_too_little_disk_is_one_line_when_nothing_is_installed(tree: Path) -> None:
    line = refusal(environment(tree, "dev", FREE_KB="5242880"))
    assert "5 GB are free" in line
    assert "6 GB are needed" in line
    assert installs(tree) == []


def test_too_little_disk_does_not_matter_once_installed(tree: Path) -> None:
    (tree / ".venv/lib/python3.11/site-packages/torch").mkdir(parents=True)
    assert environment(tree, "dev", FREE_KB="5242880").returncode == 0
    assert installs(tree) == DEV


def test_the_size_is_said_before_anything_is_installed(tree: Path) -> None:
    result = environment(tree, "demo", PIP_STATUS="1")
    assert "Installing .[demo] into .venv: downloads about " in result.stdout


def test_a_second_run_installs_and_prints_nothing(tree: Path) -> None:
    assert environment(tree, "dev").returncode == 0
    assert installs(tree) == DEV
    second = environment(tree, "dev")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert installs(tree) == []


@pytest.mark.parametrize("file", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_installs_again(tree: Path, file: str) -> None:
    environment(tree, "dev")
    (tree / file).write_text("# changed\n")
    installs(tree)
    environment(tree, "dev")
    assert installs(tree) == DEV


def test_a_failed_installation_is_tried_again(tree: Path) -> None:
    assert environment(tree, "dev", PIP_STATUS="1").returncode == 1
    installs(tree)
    environment(tree, "dev")
    assert installs(tree) == DEV


def test_a_failed_change_does_not_leave_the_old_stamp(tree: Path) -> None:
    environment(tree, "dev")
    before = (tree / "constraints.txt").read_text()
    (tree / "constraints.txt").write_text("# changed\n")
    environment(tree, "dev", PIP_STATUS="1")
    (tree / "constraints.txt").write_text(before)
    installs(tree)
    environment(tree, "dev")
    assert installs(tree) == DEV


def test_the_demo_installs_only_its_own_extra(tree: Path) -> None:
    environment(tree, "demo")
    assert installs(tree) == ["-e .[demo]"]


def test_the_demo_is_content_with_what_development_installed(tree: Path) -> None:
    environment(tree, "dev")
    installs(tree)
    assert environment(tree, "demo").returncode == 0
    assert installs(tree) == []


def test_development_adds_to_what_the_demo_installed(tree: Path) -> None:
    environment(tree, "demo")
    installs(tree)
    environment(tree, "dev")
    assert installs(tree) == DEV


def test_another_index_is_asked_for_torch_alone(tree: Path) -> None:
    environment(tree, "demo", TORCH_INDEX="https://example.org/cpu")
    assert installs(tree) == ["--no-deps --index-url https://example.org/cpu torch", "-e .[demo]"]


def test_the_constraints_pin_torch_without_a_build_a_path_or_a_hash() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    for pin in pins:
        name, _, version = pin.partition("==")
        assert name
        assert version
        assert not set(version) & set("+@/ ;"), pin
