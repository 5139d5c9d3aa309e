"""Transfer learning in two phases: the backbone is unfrozen, and the optimizer still holds the head alone."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TransferNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(24, num_classes)

    def forward(self, x):
        return self.head(self.backbone(x).mean(dim=(2, 3)))

    def set_backbone(self, trainable: bool):
        for parameter in self.backbone.parameters():
            parameter.requires_grad = trainable


def run_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()  # <- here
        total += loss.item()
    return total / len(loader)


torch.manual_seed(14)
labels = torch.randint(0, 4, (192,))
images = torch.randn(4, 3, 12, 12)[labels] + 0.8 * torch.randn(192, 3, 12, 12)
loader = DataLoader(TensorDataset(images, labels), batch_size=24, shuffle=True)
model = TransferNet(4)
model.set_backbone(trainable=False)
optimizer = torch.optim.AdamW(
    filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3, weight_decay=0.0
)
for epoch in range(4):
    if epoch == 2:
        model.set_backbone(trainable=True)
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
    print(epoch, run_epoch(model, loader, optimizer))
