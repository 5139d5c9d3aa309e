"""The transfer learning tutorial: a fixed feature extractor, train and val phases, the best checkpoint loaded."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
backbone = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
)
for param in backbone.parameters():
    param.requires_grad = False
model = nn.Sequential(backbone, nn.Linear(8, 2))
images, labels = torch.randn(48, 3, 8, 8), torch.arange(48) % 2
dataloaders = {
    "train": DataLoader(TensorDataset(images[:32], labels[:32]), batch_size=8, shuffle=True),
    "val": DataLoader(TensorDataset(images[32:], labels[32:]), batch_size=8),
}
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.01, momentum=0.9)
scheduler = lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
best_acc = -1.0
for _epoch in range(3):
    for phase in ["train", "val"]:
        model.train() if phase == "train" else model.eval()
        running_corrects = 0
        for inputs, targets in dataloaders[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = model(inputs)
                _, preds = torch.max(outputs, 1)
                loss = criterion(outputs, targets)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            running_corrects += int(torch.sum(preds == targets))
        if phase == "train":
            scheduler.step()
        if phase == "val" and running_corrects > best_acc:
            best_acc = running_corrects
            torch.save(model.state_dict(), "best.pt")
model.load_state_dict(torch.load("best.pt", weights_only=True))
