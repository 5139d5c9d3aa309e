"""Fine-tuning from a checkpoint: a backbone's weights are loaded, the head is new, and so is the optimizer on purpose."""

from __future__ import annotations

import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        return self.fc(self.backbone(x))


def fit(model, groups, classes, updates, teacher):
    optimizer = torch.optim.AdamW(groups, lr=2e-3, weight_decay=0.0)
    for _ in range(updates):
        x = torch.randn(48, 16)
        y = (x @ teacher[:, :classes]).argmax(1)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
teacher = torch.randn(16, 8)
source = Net(8)
print("pretraining", fit(source, source.parameters(), 8, 30, teacher))
checkpoint = io.BytesIO()
torch.save(source.state_dict(), checkpoint)
checkpoint.seek(0)

model = Net(3)
weights = {k: v for k, v in torch.load(checkpoint, weights_only=True).items() if not k.startswith("fc.")}
print(model.load_state_dict(weights, strict=False))
groups = [{"params": model.backbone.parameters(), "lr": 2e-4}, {"params": model.fc.parameters()}]
print("fine-tuning", fit(model, groups, 3, 20, teacher))
