"""Calibrations of this machine's devices, kept in the user's cache."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from snugfit.errors import SettingError
from snugfit.planner.devices.device import Device, Link
from snugfit.system.disk_files import cache_folder, whole_file
from snugfit.system.json_text import parse_json

PROBES = 5
"""Counts what has been measured in different ways: a calibration by other probes is none."""


def store(device: Device) -> Path:
    """Keep a calibration for `this_device`, beside those for other numbers of threads and versions of torch."""
    path = _calibrations()
    path.parent.mkdir(parents=True, exist_ok=True)
    known = _read(path) if path.exists() else {}
    with whole_file(path) as draft:
        draft.write_text(json.dumps({**known, _key(device): asdict(device)}, indent=1))
    return path


def stored(device: Device) -> Device | None:
    """Return the calibration of this device on this machine; None where there is none. Memory and links are the given device's."""
    path = _calibrations()
    entry = _read(path).get(_key(device)) if path.exists() else None
    if entry is None:
        return None
    try:
        rates = {
            name: tuple((float(x), float(y)) for x, y in curve) for name, curve in entry["rates"].items()
        }
        link = Link(**entry["host_link"])
        host = ("host", "view", "mode", "hook", "call", "update")
        plain = ("flops", "bandwidth", "efficiency", "reach", "launch", "disk", "reserved", *host)
        measured = {name: entry[name] for name in plain}
    except (KeyError, TypeError, ValueError) as error:
        raise SettingError(
            path, f"the calibration of {device.name} cannot be used ({error!r})", "Delete the file."
        ) from error
    return replace(device, **measured, rates=rates, host_link=link, calibrated=True)


def _calibrations() -> Path:
    return cache_folder() / "devices" / f"{platform.node() or 'machine'}.json"


def _key(device: Device) -> str:
    """CPU kernels depend on the number of threads; the host's part of the time does so nowhere."""
    threads = f" | {torch.get_num_threads()} threads" if device.kind == "cpu" else ""
    return f"{device.name}{threads} | torch {torch.__version__} | probes {PROBES}"


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = parse_json(path.read_text())
    except ValueError as error:
        raise SettingError(
            path, f"the stored calibration cannot be read ({error})", "Delete the file."
        ) from error
    return content
