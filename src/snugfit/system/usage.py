"""The use that a process makes of its machine: processor, memory and device, as trackers show them."""

from __future__ import annotations

import time

import torch

from snugfit.system.memory import available_bytes, memory_bytes

_CPU = torch.device("cpu")


class Usage:
    """The use that the process makes of its machine, since it was made or asked last."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._has_utilization = device, device.type == "cuda"
        self._wall, self._processor = time.monotonic(), time.process_time()

    def figures(self) -> dict[str, float]:
        """Return `cpu_percent` of one core, the process's resident `memory_bytes`, the machine's `free_bytes`, and of a GPU the same.

        Of a GPU that are `device_bytes` that are allocated and, where NVML can be read, the `device_percent` of the time that it computes.
        """
        wall, processor = time.monotonic(), time.process_time()
        seconds = max(wall - self._wall, 1e-9)
        figures = {
            "cpu_percent": 100 * (processor - self._processor) / seconds,
            "memory_bytes": float(memory_bytes(_CPU)),
        }
        self._wall, self._processor = wall, processor
        if (free := available_bytes(_CPU)) is not None:
            figures["free_bytes"] = float(free)
        if self._device.type == "cuda":
            figures["device_bytes"] = float(memory_bytes(self._device))
        if self._has_utilization:
            try:
                figures["device_percent"] = float(torch.cuda.utilization(self._device))
            except Exception:  # noqa: BLE001 - NVML's errors have no other base, such as that of a part of a GPU, which has no figure
                self._has_utilization = False
        return figures
