"""`snugfit env`: all that a bug report needs, and no secret."""

from __future__ import annotations

import json

import pytest
import torch

from snugfit.cli import main
from snugfit.system import environment as module
from snugfit.system.environment import environment


def test_versions_machine_and_packages_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"]["version"] == torch.__version__
    assert found["packages"]["numpy"] and "torch" not in found["packages"]
    assert found["memory"]["total_bytes"] > found["memory"]["free_bytes"] > 0
    assert 1 <= found["processor"]["usable_cores"] <= found["processor"]["cores"]


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 30)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:swordfish@mlflow.example.com")
    monkeypatch.setenv("SECRET_OF_MINE", "swordfish")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for arguments in (["env"], ["env", "--json"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "a" * 30 not in out and "swordfish" not in out
        assert "OMP_NUM_THREADS" in out and "mlflow.example.com" in out


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if name == "mlflow":
            raise module.PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(module, "version", version)
    assert environment()["missing"] == {"mlflow": "mlflow"}


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = {
        "name": "NVIDIA T4",
        "kind": "cuda:0",
        "capability": "7.5",
        "total_bytes": 2**34,
        "free_bytes": 2**33,
        "bf16": False,
    }
    monkeypatch.setattr(module, "_devices", lambda: [gpu])
    assert main(["env"]) == 0
    assert (
        "device     cuda:0 NVIDIA T4, 16.00 GiB (8.00 GiB free), compute capability 7.5, no bf16 units"
        in capsys.readouterr().out
    )
