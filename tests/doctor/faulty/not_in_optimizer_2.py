"""Two modules, and only the decoder is in the optimizer."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(12, 4), nn.Linear(4, 12)
optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-3)  # <- here
for _ in range(5):
    batch = torch.randn(16, 12)
    optimizer.zero_grad()
    nn.functional.mse_loss(decoder(encoder(batch)), batch).backward()
    optimizer.step()
