# coding: utf-8
# Plankton under the microscope: transfer learning, a notebook saved as a script (after the PyTorch tutorial)

# %%
import copy
import time

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)

# %%
def draw(n, classes, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    line = torch.linspace(0, 3.14159, 24)
    phase = torch.rand(n, 2, 1, generator=g) * 6.28
    freq = (1.0 + y.float()).view(-1, 1, 1)
    waves = torch.sin(freq * line + phase)
    x = waves[:, 0, :, None] * waves[:, 1, None, :]
    x = x + 0.7 * torch.randn(n, 24, 24, generator=g)
    return TensorDataset(x.unsqueeze(1), y)


# %%
class Backbone(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )
        self.fc = nn.Linear(128, num_classes)

    def forward(self, x):
        return self.fc(self.features(x))


# %% pre-training on eight classes of synthetic waves
def pretrain():
    net = Backbone(8)
    opt = optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(3):
        for x, y in DataLoader(draw(800, 8, 0), batch_size=40, shuffle=True):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
        print("pretrain", epoch, f"{loss.item():.3f}")
    return net


# %%
datasets = {"train": draw(360, 5, 1), "val": draw(150, 5, 2)}
dataloaders = {k: DataLoader(d, batch_size=24, shuffle=(k == "train")) for k, d in datasets.items()}
dataset_sizes = {k: len(d) for k, d in datasets.items()}


# %%
def train_model(model, criterion, optimizer, scheduler, num_epochs=8):
    since = time.time()
    best_model_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            model.train(phase == "train")
            running_loss, running_corrects = 0.0, 0
            for inputs, labels in dataloaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data).item()
            if phase == "train":
                scheduler.step()
            epoch_acc = running_corrects / dataset_sizes[phase]
            print(f"{epoch} {phase} Loss: {running_loss / dataset_sizes[phase]:.4f} Acc: {epoch_acc:.4f}")
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model_wts = copy.deepcopy(model.state_dict())
    print(f"Training complete in {time.time() - since:.0f}s, best val Acc: {best_acc:.4f}")
    model.load_state_dict(best_model_wts)
    return model


# %%
model_ft = pretrain()
num_ftrs = model_ft.fc.in_features
model_ft.fc = nn.Linear(num_ftrs, 5)
optimizer_ft = optim.SGD(model_ft.parameters(), lr=0.04, momentum=0.9)
criterion = nn.CrossEntropyLoss()
exp_lr_scheduler = lr_scheduler.StepLR(optimizer_ft, step_size=4, gamma=0.9)
model_ft = train_model(model_ft, criterion, optimizer_ft, exp_lr_scheduler)

# %%
model_ft.eval()
with torch.no_grad():
    x, y = datasets["val"].tensors
    print("returned model, val Acc:", f"{(model_ft(x).argmax(1) == y).float().mean().item():.4f}")
