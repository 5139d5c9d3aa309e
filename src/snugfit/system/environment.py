"""The environment of this process as a bug report needs it: versions, processor, memory, devices, variables. No secrets."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch

from snugfit.system.memory import available_bytes, machine_bytes
from snugfit.system.processor import processor_name
from snugfit.system.redaction import redacted

_VARIABLES = re.compile(
    r"(?:CUDA|NVIDIA|ROCR|HIP|OMP|MKL|KMP|GOMP|OPENBLAS|NUMEXPR|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|NCCL|GLOO|HF|TRANSFORMERS|TOKENIZERS"
    r"|MLFLOW|WANDB|MALLOC|COLAB|KAGGLE|SNUGFIT|XDG_CACHE)_\w+|LD_PRELOAD|CONDA_DEFAULT_ENV|(?:LOCAL_)?(?:RANK|WORLD_SIZE)"
)
"""Variables that change how torch, the libraries beside it or Snugfit run."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?(?P<rest>[^;]*)(?:;\s*(?P<marker>.*))?")
_EXTRA = re.compile(r"extra == [\"'](\w+)[\"']")


def environment() -> dict[str, Any]:
    """Return what is known of this process and its machine as plain values, without secrets; sizes in bytes."""
    packages, missing = _packages()
    facts = {
        "snugfit": {"version": packages.pop("snugfit", None), "folder": str(_folder()), **_commit(_folder())},
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "system": {"platform": platform.platform(), "notebook": "ipykernel" in sys.modules},
        "processor": {
            "name": processor_name(),
            "cores": os.cpu_count(),
            "usable_cores": _usable_cores(),
            "torch_threads": torch.get_num_threads(),
        },
        "memory": {"total_bytes": machine_bytes(), "free_bytes": available_bytes(torch.device("cpu"))},
        "torch": {
            "version": torch.__version__,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
        },
        "devices": _devices(),
        "packages": packages,
        "missing": missing,
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)
        },
    }
    clean: dict[str, Any] = redacted(facts)
    return clean


def _usable_cores() -> int | None:
    """Return how many cores this process may use, which containers and batch systems restrict."""
    if hasattr(os, "sched_getaffinity"):  # macOS and Windows restrict none
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _devices() -> list[dict[str, Any]]:
    """Return the accelerators that torch sees, each with what decides kernels and memory."""
    if torch.cuda.is_available():
        return [_cuda_device(place) for place in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        return [{"name": "Apple GPU", "kind": "mps", "total_bytes": torch.mps.recommended_max_memory()}]
    return []


def _cuda_device(place: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(place)
    free, total = torch.cuda.mem_get_info(place)
    return {
        "name": properties.name,
        "kind": f"cuda:{place}",
        "capability": f"{properties.major}.{properties.minor}",
        "total_bytes": total,
        "free_bytes": free,
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    }


def _packages() -> tuple[dict[str, str], dict[str, str]]:
    """Return versions of Snugfit and what it works with, and the extras that bring what is missing, by package."""
    wanted: dict[str, str] = {"snugfit": ""}
    try:
        requirements = requires("snugfit") or []
    except PackageNotFoundError:  # a copy that is not installed
        requirements = []
    for text in requirements:
        match = _REQUIREMENT.match(text)
        extra = _EXTRA.search(text)
        if match is not None and (extra is None or extra[1] not in ("dev", "docs", "demo", "bench")):
            wanted.setdefault(match["name"].lower(), "" if extra is None else extra[1])
    versions, missing = {}, {}
    for name, extra_name in wanted.items():
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            missing[name] = extra_name
    versions.pop("torch", None)  # it stands by itself
    missing.pop("snugfit", None)
    return versions, missing


def _folder() -> Path:
    return Path(__file__).resolve().parents[1]


def _commit(folder: Path) -> Mapping[str, Any]:
    """Return the commit of a source checkout and whether files differ from it; nothing for an installed copy."""
    if folder.parent.name != "src":
        return {}
    root = folder.parents[1]
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        return {}
    return {"commit": commit, "changed": changed}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
