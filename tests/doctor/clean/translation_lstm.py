"""An encoder and a decoder of recurrent layers, packed by length, with padding left out of the loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

torch.manual_seed(0)
PAD, BEGIN, END = 0, 1, 2
source, target = nn.Embedding(30, 16, padding_idx=PAD), nn.Embedding(30, 16, padding_idx=PAD)
encoder, decoder, head = (
    nn.LSTM(16, 24, batch_first=True),
    nn.LSTM(16, 24, batch_first=True),
    nn.Linear(24, 30),
)
parts = nn.ModuleList([source, target, encoder, decoder, head])
optimizer = torch.optim.Adam(parts.parameters(), lr=1e-3)
for _ in range(12):
    lengths = torch.randint(4, 10, (8,))
    words = torch.randint(3, 30, (8, 10)) * (torch.arange(10)[None] < lengths[:, None])
    wanted = words.flip(1).roll(1, 1)
    wanted[:, 0] = BEGIN
    packed = pack_padded_sequence(source(words), lengths, batch_first=True, enforce_sorted=False)
    _, state = encoder(packed)
    scores = head(decoder(target(wanted[:, :-1]), state)[0])
    loss = nn.functional.cross_entropy(scores.transpose(1, 2), wanted[:, 1:], ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
    optimizer.step()
