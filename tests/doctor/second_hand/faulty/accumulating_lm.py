"""A language model that accumulates four micro-batches and adds their mean losses up undivided."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    vocab: int = 64
    dim: int = 32
    context: int = 24
    micro_batch: int = 8
    accumulation: int = 4
    updates: int = 10
    lr: float = 1e-3


class LM(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.tokens = nn.Embedding(s.vocab, s.dim)
        self.positions = nn.Embedding(s.context, s.dim)
        layer = nn.TransformerEncoderLayer(s.dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(s.dim, s.vocab, bias=False)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(s.context))

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return self.out(self.layers(x, mask=self.causal, is_causal=True))


def stream(s: Settings):
    table = torch.randint(0, s.vocab, (s.vocab, 3))
    while True:
        ids = torch.empty(s.micro_batch, s.context + 1, dtype=torch.long)
        ids[:, 0] = torch.randint(0, s.vocab, (s.micro_batch,))
        for position in range(s.context):
            choice = torch.randint(0, 3, (s.micro_batch,))
            ids[:, position + 1] = table[ids[:, position], choice]
        yield ids[:, :-1], ids[:, 1:]


def run(s: Settings):
    torch.manual_seed(0)
    model, data = LM(s), stream(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr, weight_decay=0.0)
    for update in range(s.updates):
        optimizer.zero_grad()
        for _ in range(s.accumulation):
            inputs, targets = next(data)
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()  # <- here
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(update, f"{loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=10)
    run(Settings(updates=parser.parse_args().updates))
