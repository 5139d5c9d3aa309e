"""The kernel of attention that ran beside the one that the planner assumes, for the calls that models make."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from checks import Settings, check, require


@check("attention runs in the kernel that is assumed", 60)
def kernels(settings: Settings) -> Mapping[str, Any]:
    """Try types, sizes of heads, masks and grouped heads; on a CPU the assumption is made for a GPU, and nothing is compared."""
    import torch
    from torch.nn import functional

    from snugfit.kit.autograd_graph import kernels_behind
    from snugfit.planner.pretend_gpu.attention import Attention

    capability = torch.cuda.get_device_capability() if settings.cuda else (9, 0)
    tokens = settings.size(512, 16)
    rows: dict[str, Any] = {}
    types = settings.size((torch.float32, torch.bfloat16, torch.float16), (torch.bfloat16,))
    sizes = settings.size((64, 80, 128, 256), (64,))
    for dtype, size, mask, grouped in itertools.product(
        types, sizes, ("none", "causal", "given"), (False, True)
    ):
        heads = 8
        query = torch.randn(2, heads, tokens, size, dtype=dtype, device=settings.device, requires_grad=True)
        key = torch.randn(
            2, heads // 4 if grouped else heads, tokens, size, dtype=dtype, device=settings.device
        )
        key.requires_grad_()
        given = None
        if mask == "given":
            given = torch.ones(2, 1, tokens, tokens, dtype=torch.bool, device=settings.device).tril()
        call = Attention(query, key, key, given, 0.0, mask == "causal", grouped, capability)
        assumed = call.kernel().name.partition("_")[0].lower()
        outputs = functional.scaled_dot_product_attention(
            query, key, key, attn_mask=given, is_causal=mask == "causal", enable_gqa=grouped
        )
        ran = sorted(kernels_behind(outputs))
        outputs.sum().backward()
        name = f"{str(dtype).removeprefix('torch.')}, {size}, mask {mask}{', grouped' if grouped else ''}"
        rows[name] = {"assumed": assumed, "ran": ran}
        settings.note({"cases": rows})
    wrong = [name for name, row in rows.items() if row["ran"] != [row["assumed"]]]
    require(
        not wrong or not settings.cuda,
        f"other kernels ran than assumed in {len(wrong)} of {len(rows)} cases",
        cases=rows,
    )
    return {"cases": rows}


@check("context and workspaces are as large as they are taken to be", 40, alone=True)
def context(settings: Settings) -> Mapping[str, Any]:
    """Measure what a process has on the device beside the allocator, before and after products, convolutions and attention."""
    import torch
    from checks import Skip
    from torch import nn

    if not settings.cuda:
        raise Skip("a CPU has no context")
    from snugfit.planner.devices.hardware import uncalibrated

    def outside_bytes() -> int:
        torch.cuda.synchronize()
        free, whole = torch.cuda.mem_get_info()
        return whole - free - torch.cuda.memory_reserved()

    torch.cuda.init()
    figures: dict[str, Any] = {"taken": uncalibrated("cuda").reserved, "context": outside_bytes()}
    layer = nn.Linear(4096, 4096, device="cuda", dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated()
    layer(torch.ones(64, 4096, device="cuda", dtype=torch.bfloat16)).sum().backward()
    torch.cuda.synchronize()
    figures |= {
        "with products": outside_bytes(),
        "cublas workspaces in the allocator": torch.cuda.memory_allocated() - before,
    }
    net = nn.Conv2d(16, 32, 3, device="cuda")
    net(torch.ones(8, 16, 64, 64, device="cuda")).sum().backward()
    figures["with convolutions"] = outside_bytes()
    query = torch.ones(1, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    figures["with attention"] = outside_bytes()
    apart = figures["with attention"] / figures["taken"] - 1
    require(abs(apart) < 0.25, f"{apart:+.0%} of what is taken for context and workspaces", **figures)
    return figures
