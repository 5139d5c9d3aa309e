"""A recurrent network inside of a model keeps its state over batches of shuffled melodies."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Melodies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 12, batch_first=True), nn.Linear(12, 4)
        self.state = None

    def forward(self, notes: torch.Tensor) -> torch.Tensor:
        out, state = self.rnn(notes, self.state)  # <- here
        self.state = state.detach()
        return self.head(out.mean(1))


torch.manual_seed(0)
style = torch.randint(0, 4, (128,))
loader = DataLoader(TensorDataset(torch.randn(128, 7, 3) + style[:, None, None], style), 16, shuffle=True)
model = Melodies()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _epoch in range(2):
    for notes, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(notes), labels)
        loss.backward()
        optimizer.step()
print(loss.item())
