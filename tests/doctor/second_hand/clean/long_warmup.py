"""A transformer whose rate rises from a millionth over half of its updates, so that its first steps move nearly nothing."""

from __future__ import annotations

import math

import torch
from torch import nn

WARMUP, TOTAL = 16, 32


def factor(step):
    if step < WARMUP:
        return 1e-6 + (1 - 1e-6) * step / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.enc(self.inp(x)).mean(1))


torch.manual_seed(0)
model = Regressor()
decayed = [p for p in model.parameters() if p.ndim > 1]
plain = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for _step in range(TOTAL):
    x = torch.randn(32, 10, 4)
    y = x[:, :, 0].mean(1, keepdim=True) * 3
    loss = nn.functional.huber_loss(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
print(loss.item(), scheduler.get_last_lr())
