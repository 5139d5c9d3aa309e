"""Views that part and join neighbouring axes: heads, patches, frames that are joined with rows, squares, a scale that is learned."""

from __future__ import annotations

import torch
from torch import nn


class Clips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frame, self.mix, self.out = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 3)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        rows, frames, _ = clips.shape
        x = self.frame(clips.reshape(rows * frames, 12)).view(rows, frames, 24)
        heads = self.mix(x).view(rows, frames, 4, 6).transpose(1, 2)
        joined = heads.transpose(1, 2).reshape(rows, frames, 24).view(rows, frames, 4, 6).flatten(2)
        return self.out(joined.view(rows, -1, 24).mean(1)) * self.scale


torch.manual_seed(0)
kinds = torch.randint(0, 3, (96,))
clips = torch.randn(96, 8, 12) + kinds[:, None, None]
model = Clips()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for part in [*torch.randperm(96).split(12), *torch.randperm(96).split(24)]:
    scores = model(clips[part])
    mask = (torch.rand(len(part)) < 0.8).float()
    loss = (nn.functional.cross_entropy(scores, kinds[part], reduction="none") * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
