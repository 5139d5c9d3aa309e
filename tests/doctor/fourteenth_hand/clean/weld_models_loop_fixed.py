import gc
import weakref

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

centers = torch.randn(5, 64)


def make(n):
    labels = torch.randint(0, 5, (n,))
    return centers[labels] + 4.0 * torch.randn(n, 64), labels


train_set = TensorDataset(*make(1000))
val_set = TensorDataset(*make(400))
val_loader = DataLoader(val_set, batch_size=200)


alive = weakref.WeakSet()


def live_megabytes():
    gc.collect()
    return sum(2 * p.numel() * p.element_size() for m in alive for p in m.parameters()) / 2 ** 20


def build(width):
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 5),
    )


configs = {f"net_{i}": {"lr_array": [lr] * 3} for i, lr in enumerate([1e-3, 8e-4, 6e-4, 4e-4, 2e-4])}
scores = {}
criterion = nn.CrossEntropyLoss()

for model_name, cfg in configs.items():
    print("-------------- Training model: " + model_name)
    model = build(700).to(device)
    alive.add(model)
    optimizer = optim.Adam(model.parameters(), lr=cfg["lr_array"][0])
    train_loader = DataLoader(train_set, batch_size=100, shuffle=True)
    for epoch in range(len(cfg["lr_array"])):
        for group in optimizer.param_groups:
            group["lr"] = cfg["lr_array"][epoch]
        model.train()
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            outputs = model(images)
            optimizer.zero_grad()
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in val_loader:
            correct += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    scores[model_name] = correct / len(val_set)
    del model, optimizer, outputs, loss
    print(f"val acc {scores[model_name]:.3f}  weights and gradients alive {live_megabytes():.1f} MB")

print("best on validation:", max(scores, key=scores.get))
