"""bfloat16 autocast on a processor that reports no instructions for it (made to report that here)."""

from __future__ import annotations

import torch
from torch import nn

torch.cpu.get_capabilities = lambda: {"avx2": True, "avx512_bf16": False, "amx_bf16": False}
torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(16, 6)).square().mean()  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
