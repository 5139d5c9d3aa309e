"""Distil a wide network into a narrow one (Hinton et al.), on drawn shapes."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(10)
T, alpha = 3.0, 0.7


def shapes(count, seed, side=12):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 6, (count,), generator=g)
    x = 1.5 * torch.randn(count, 1, side, side, generator=g)
    for image, kind in zip(x, y.tolist()):
        r, c = torch.randint(0, 5, (2,), generator=g).tolist()
        patch = image[0, r : r + 6, c : c + 6]
        if kind == 0:
            patch[2:4] += 2
        elif kind == 1:
            patch[:, 2:4] += 2
        elif kind == 2:
            patch += 2 * torch.eye(6)
        elif kind == 3:
            patch += 2 * torch.eye(6).flip(1)
        elif kind == 4:
            patch[[0, -1]] += 2
        else:
            patch[:, [0, -1]] += 2
    return TensorDataset(x, y)


def network(width, dropout):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(dropout), nn.Linear(2 * width * 9, 6),
    )


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def train_teacher(teacher, loader, epochs):
    optimizer = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(epochs):
        teacher.train()
        for x, y in loader:
            loss = F.cross_entropy(teacher(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def loss_fn_kd(outputs, labels, teacher_outputs):
    soft = F.kl_div(F.log_softmax(outputs / T, dim=1), F.softmax(teacher_outputs / T, dim=1), reduction="batchmean")
    return alpha * T * T * soft + (1 - alpha) * F.cross_entropy(outputs, labels)


def distil(student, teacher, loader, val_loader, epochs):
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    for param in teacher.parameters():
        param.requires_grad = False
    for epoch in range(epochs):
        student.train()
        teacher.train()  # <- here
        for x, y in loader:
            with torch.no_grad():
                teacher_outputs = teacher(x)  # <- here
            loss = loss_fn_kd(student(x), y, teacher_outputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"student epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy(student, val_loader):.3f}")


train_loader = DataLoader(shapes(900, 1), batch_size=50, shuffle=True)
val_loader = DataLoader(shapes(300, 2), batch_size=100)
teacher = network(16, dropout=0.5)
train_teacher(teacher, train_loader, epochs=5)
print(f"teacher: accuracy {accuracy(teacher, val_loader):.3f}")
distil(network(6, dropout=0.0), teacher, train_loader, val_loader, epochs=5)
