"""The processor, as the system describes it."""

from __future__ import annotations

import platform
from pathlib import Path

_INFO = Path("/proc/cpuinfo")


def processor_info(file: Path = _INFO) -> dict[str, str]:
    """Return what Linux says of the first processor, by its keys; nothing on other systems."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def processor_name() -> str:
    """Return the processor's name as the system gives it."""
    return processor_info().get("model name") or platform.processor() or platform.machine()


def processor_flags(file: Path = _INFO) -> frozenset[str]:
    """Return the instruction sets of the processor; none where the system does not say."""
    info = processor_info(file)
    return frozenset((info.get("flags") or info.get("Features") or "").split())
