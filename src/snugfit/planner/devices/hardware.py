"""Finding devices: those of the catalogue by their makers' sheets, those at hand by a calibration or by looking."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch

from snugfit.errors import SettingError, nearest
from snugfit.planner.devices.calibrations import stored
from snugfit.planner.devices.data_sheets import HERE, LINKS, SHEETS, Sheet, check_device
from snugfit.planner.devices.device import Device, Link
from snugfit.system.memory import machine_bytes
from snugfit.system.processor import processor_flags, processor_info, processor_name
from snugfit.units import format_bytes


def find_link(name: str, setting: str = "link") -> Link:
    """Return a link by its name.

    >>> find_link("pcie4").bandwidth
    25000000000.0
    """
    if name not in LINKS:
        raise SettingError(setting, f"there is no link '{name}'", nearest(name, LINKS))
    gigabytes, microseconds = LINKS[name]
    return Link(name, gigabytes * 1e9, microseconds * 1e-6)


def find_device(
    name: str, memory_bytes: int | None = None, host_link: str | None = None, peer_link: str | None = None
) -> Device:
    """Return a device of the catalogue, or with "cpu", "cuda" or "mps" the one at hand.

    Args:
        memory_bytes: instead of what the sheet says, for a variant or a part of it.
        host_link: between its memory and the host's, by name; peer_link: between it and another one.
    Raises:
        SettingError: the device or the link is not known, or the memory leaves nothing beside what is reserved.
    """
    check_device(name)
    key = name.lower()
    device = this_device(key) if key in HERE else _of_sheet(key, SHEETS[key])
    if memory_bytes is not None:
        if memory_bytes <= device.reserved:
            raise SettingError(
                "memory",
                f"of {format_bytes(memory_bytes)} nothing is left, since a process on {device.name} takes "
                f"{format_bytes(device.reserved)} before its first tensor",
                "Give more.",
            )
        device = replace(device, memory_bytes=memory_bytes)
    if host_link is not None:
        device = replace(device, host_link=find_link(host_link, "host_link"))
    if peer_link is not None:
        device = replace(device, peer_link=find_link(peer_link, "link"))
    return device


def usual_host_bytes(name: str) -> int:
    """Return the host memory that is usual beside a device of the catalogue.

    >>> usual_host_bytes("rtx4090") // 2**30
    64
    """
    return int(SHEETS[name.lower()].host * 2**30)


def this_device(kind: str) -> Device:
    """Return the device at hand: as calibrated if it was, otherwise from the catalogue or a cautious estimate.

    Args:
        kind: "cpu", "cuda" or "mps"; of several CUDA devices the current one.
    Raises:
        SettingError: there is none of that kind here, or its stored calibration cannot be read.
    """
    device = uncalibrated(kind)
    return stored(device) or device


def uncalibrated(kind: str) -> Device:
    """Return the device at hand, whether or not there is a calibration of it."""
    if kind == "cpu":
        return _this_cpu()
    if kind == "cuda" and torch.cuda.is_available():
        return _this_cuda()
    if kind == "mps" and torch.backends.mps.is_available():
        return _this_mps()
    raise SettingError(
        "device", f"there is no '{kind}' device here", "Name one of the catalogue, or use cpu."
    )


def _of_sheet(name: str, sheet: Sheet) -> Device:
    terms = {"float16": sheet.half, "float32": sheet.float32, "tf32": sheet.tf32, "float8": sheet.float8}
    terms |= {
        "int8": sheet.int8,
        "float64": sheet.float64,
        "bfloat16": sheet.half if sheet.capability >= (8, 0) else 0,
    }
    return Device(
        name=name,
        kind="cuda",
        memory_bytes=int(sheet.memory * 2**30),
        flops={dtype: peak * 1e12 for dtype, peak in terms.items() if peak},
        bandwidth=sheet.bandwidth * 1e9,
        efficiency=_efficiencies(sheet.efficiency),
        reach=0.8,
        launch=3e-6,
        host=8e-6,
        view=3e-6,
        mode=1e-5,
        hook=5e-6,
        update=1e-4,
        reserved=_context_bytes(sheet.capability),
        host_link=find_link(sheet.host_link),
        peer_link=find_link(sheet.peer_link),
        capability=sheet.capability,
    )


def _efficiencies(matmul: float) -> dict[str, float]:
    """Convolutions and fused attention reach less of the peak than large matrix products do: judgement until calibrated."""
    return {"matmul": matmul, "convolution": 0.7 * matmul, "attention": 0.6 * matmul, "other": 0.5 * matmul}


def _context_bytes(capability: tuple[int, int]) -> int:
    """Return the CUDA context, the kernels that libraries load, and cuBLAS' workspaces, of forward and of backward.

    On an H100 with CUDA 13 a context took 527 MiB, with the kernels of a step 751 to 769 MiB, and the workspaces 65 MiB. For cards before
    Hopper, whose kernels are fewer, it is judgement: 512 MiB and 8 MiB.
    """
    return (760 + 65 if capability >= (9, 0) else 512 + 8) * 2**20


def _this_cuda() -> Device:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    capability = (properties.major, properties.minor)
    sheet = sheet_of(properties.name, properties.total_memory, capability)
    return replace(
        _of_sheet(properties.name, sheet), memory_bytes=properties.total_memory, capability=capability
    )


def sheet_of(name: str, memory_bytes: int, capability: tuple[int, int]) -> Sheet:
    """Return the sheet of a card by the name that its driver gives, among variants by its memory.

    A card that is not in the catalogue gets that of the slowest one of its compute capability, or else of the nearest before.

    >>> sheet_of("NVIDIA A100-SXM4-80GB", 80 * 2**30, (8, 0)).bandwidth
    2039
    >>> sheet_of("NVIDIA GeForce RTX 4070", 12 * 2**30, (8, 9)).title
    'RTX 4060 Ti'
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    variant = words & {"laptop", "mobile", "max", "ti", "super", "pcie", "d"}
    laptop = bool(variant & {"laptop", "mobile"})
    alike = [each for each in SHEETS.values() if laptop or "laptop" not in each.title.lower()]
    named = [
        sheet
        for sheet in alike
        if (own := set(sheet.title.lower().split())) - {"tesla"} <= words and variant <= own
    ]
    if named:
        return min(named, key=lambda sheet: abs(sheet.memory * 2**30 - memory_bytes))
    older = [s for s in alike if s.capability <= capability] or alike
    newest = max(s.capability for s in older)
    return min((s for s in older if s.capability == newest), key=lambda sheet: sheet.half)


def _this_cpu() -> Device:
    """Return a cautious estimate: vector units at the clock that /proc tells, a share of one socket's memory bandwidth."""
    threads = torch.get_num_threads()
    per_cycle = {"AVX512": 64, "AVX2": 32}.get(torch.backends.cpu.get_cpu_capability(), 16)
    peak = threads * per_cycle * float(processor_info().get("cpu MHz", 2000.0)) * 1e6
    flags = processor_flags()
    half = 8.0 if "amx_bf16" in flags else 2.0 if "avx512_bf16" in flags else 0.5
    return Device(
        name=processor_name(),
        kind="cpu",
        memory_bytes=_host_bytes(),
        flops={
            "float32": peak,
            "tf32": peak,
            "float64": peak / 2,
            "bfloat16": half * peak,
            "float16": peak / 2,
            "int8": peak,
        },
        bandwidth=min(threads, 8) * 12e9,
        efficiency={"matmul": 0.7, "convolution": 0.6, "attention": 0.25, "other": 0.1},
        reach=0.8,
        launch=0.0,
        host=5e-6,
        view=3e-6,
        mode=1e-5,
        hook=5e-6,
        update=1e-4,
        reserved=0,
        host_link=find_link("memory"),
        peer_link=find_link("memory"),
    )


_GIB_OF_A_CORE = 8
_MOST_CORES = 16
"""Of a usual host: what clouds rent with a device has a core for about so much memory, of which a step on the host uses no more."""


def usual_host(name: str) -> Device:
    """Return the CPU that is usual beside a device of the catalogue: cores by the host's memory, judgement until a run there is measured.

    What a plan for another machine takes does not depend on the one that it is made on.

    >>> [usual_host(name).bandwidth / 1e9 for name in ("t4", "rtx4090", "a100-80")]
    [24.0, 96.0, 96.0]
    """
    cores = min(_MOST_CORES, max(2, round(usual_host_bytes(name) / 2**30 / _GIB_OF_A_CORE)))
    peak = cores * 32 * 3e9  # AVX2
    here = _this_cpu()
    return replace(
        here,
        name=f"a host of {name}",
        memory_bytes=usual_host_bytes(name),
        flops={
            **dict.fromkeys(here.flops, peak),
            "float64": peak / 2,
            "bfloat16": peak / 2,
            "float16": peak / 2,
        },
        bandwidth=min(cores, 8) * 12e9,
    )


def _this_mps() -> Device:
    """Return a base M1 (2.6 TFLOP/s, 68 GB/s), which every later one exceeds. Source: Apple's newsroom, November 2020."""
    return replace(
        _this_cpu(),
        name="Apple GPU",
        kind="mps",
        memory_bytes=torch.mps.recommended_max_memory(),
        flops={"float32": 2.6e12, "float16": 2.6e12, "bfloat16": 2.6e12},
        bandwidth=68e9,
        efficiency=_efficiencies(0.6),
        launch=1e-5,
        host=1e-5,
    )


def _host_bytes() -> int:
    """Return the machine's memory, or a container's limit if that is less."""
    physical = machine_bytes()
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return physical if text == "max" else min(physical, int(text))
