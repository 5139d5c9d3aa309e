"""The device of a command: whether it computes, and what it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from checks import Settings, require, wait


def look_at_device(settings: Settings) -> Mapping[str, Any]:
    """Multiply on the device, compare with the host, and say what the device is."""
    import torch

    description: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if settings.cuda:
        require(not torch.cuda._is_in_bad_fork(), "this process was forked from one that has used the GPU")
        free, whole = torch.cuda.mem_get_info()
        properties = torch.cuda.get_device_properties(0)
        description |= {
            "name": properties.name,
            "capability": [properties.major, properties.minor],
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "bytes_before": whole - free,  # the context alone
            "cudnn": torch.backends.cudnn.version(),
            "allocator": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        }
    else:
        description |= {"name": "cpu", "threads": torch.get_num_threads()}
    size = settings.size(1024, 64)
    one, other = (torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    product = one.to(settings.device) @ other.to(settings.device)
    wait(settings.device)
    exact = one.double() @ other.double()
    error = float((product.cpu().double() - exact).norm() / exact.norm())
    require(
        error < 1e-5, f"a product of float32 matrices is {error:.2g} away from the exact one", error=error
    )
    if settings.cuda:
        free, whole = torch.cuda.mem_get_info()
        description["bytes_with_cublas"] = whole - free - torch.cuda.memory_reserved()
    return {**description, "error_of_a_product": error}
