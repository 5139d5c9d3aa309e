"""The machine in a result: versions, the GPU's settings and clocks, without serial numbers and identifiers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

_SECRET = re.compile(
    r"serial|uuid|guid|board id|board part|bus id|inforom|vbios|gpu part|module id|minor number|host(name)?\b|process id|fabric"
    r"|cliqueid|clusteruuid|chassis|slot number|tray|peer type|^\s*name\s*:",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(
    r"\b(GPU|MIG)-[0-9a-f]{8}[0-9a-f-]*|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]+|\b[0-9a-f]{8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d",
    re.IGNORECASE,
)
_CLOCKS = (
    "clocks.sm,clocks.mem,clocks.max.sm,clocks_throttle_reasons.active,temperature.gpu,power.draw,pstate"
)


def host() -> dict[str, Any]:
    """Return what is known without a GPU: system, processor, cores, memory and every installed package."""
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": packages(),
    }


def packages() -> list[str]:
    """Return what `pip list` would show, without starting it."""
    versions = {
        f"{each.metadata['Name']}=={each.version}" for each in distributions() if each.metadata["Name"]
    }
    return sorted(versions, key=str.lower)


def nvidia_smi() -> str | None:
    """Return what `nvidia-smi -q` says, without identifiers; None where there is none."""
    report = _run("nvidia-smi", "-q")
    return None if report is None else without_identifiers(report)


def without_identifiers(text: str) -> str:
    """Return the text without the lines and the words that name one single card or host.

    >>> without_identifiers("GPU UUID : GPU-0f\\nDriver Version : 580\\nSerial Number : 17")
    'Driver Version : 580'
    """
    lines = [line for line in text.splitlines() if not _SECRET.search(line)]
    return "\n".join(_IDENTIFIER.sub("…", line) for line in lines)


def clocks() -> dict[str, str] | None:
    """Return the clocks of the first GPU, its temperature and power now."""
    readings = _run("nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv,noheader", "--id=0")
    if readings is None or not readings.strip():
        return None
    return dict(zip(_CLOCKS.split(","), (word.strip() for word in readings.split(",")), strict=False))


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
