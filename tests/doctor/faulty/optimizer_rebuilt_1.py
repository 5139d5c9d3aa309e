"""The optimizer is made in the function of an epoch, so Adam's moments are lost after each."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
words = torch.randint(0, 40, (128, 9))
labels = (words.float().mean(1) > 19.5).long()


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(40, 12)
        self.head = nn.Linear(12, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(rows))


model = Bag()


def one_epoch(epoch: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 / (epoch + 1))  # <- here
    for rows in torch.randperm(128).split(32):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(words[rows]), labels[rows])
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())


for number in range(4):
    one_epoch(number)
