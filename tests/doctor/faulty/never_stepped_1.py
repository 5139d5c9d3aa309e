"""An encoder and a decoder with an optimizer each; the decoder's is never stepped."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(12, 6), nn.Tanh())
decoder = nn.Linear(6, 12)
encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-3)  # <- here
for _ in range(10):
    rows = torch.randn(16, 12)
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    nn.functional.mse_loss(decoder(encoder(rows)), rows).backward()
    encoder_optimizer.step()
