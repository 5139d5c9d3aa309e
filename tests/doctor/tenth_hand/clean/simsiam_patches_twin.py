"""SimSiam on coloured patches, with a linear probe at the end (config in a dictionary)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

cfg = dict(batch=64, epochs=4, lr=0.05, momentum=0.9, dim=32, classes=6, seed=19)
torch.manual_seed(cfg["seed"])


def patches(n):
    labels = torch.randint(0, cfg["classes"], (n,))
    grid = torch.linspace(0, 3.14 * 2, 12)
    angle = labels.float() * 3.14 / cfg["classes"]
    phase = 6.28 * torch.rand(n, 1, 1)
    wave = torch.sin(1.5 * (grid[None, None] * angle.cos()[:, None, None] + grid[None, :, None] * angle.sin()[:, None, None]) + phase)
    colour = torch.rand(n, 3, 1, 1)
    return wave.unsqueeze(1) * colour + 0.15 * torch.randn(n, 3, 12, 12), labels


def augment(x):
    shift = torch.randint(-3, 4, (2,)).tolist()
    x = x.roll(shift, dims=(2, 3))
    gain = 0.6 + 0.8 * torch.rand(len(x), 3, 1, 1)
    return x * gain + 0.1 * torch.randn_like(x)


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:-1]):
        layers += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class SimSiam(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.projector = mlp(48, 64, dim)
        self.predictor = mlp(dim, 16, dim)

    def forward(self, x1, x2):
        z1 = self.projector(self.backbone(x1))
        z2 = self.projector(self.backbone(x2))
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return p1, p2, z1, z2


def D(p, z):
    p, z = F.normalize(p, dim=1), F.normalize(z.detach(), dim=1)
    return -(p * z).sum(dim=1).mean()


def probe(backbone, train, test):
    """Closed-form ridge regression on the frozen features."""
    backbone.eval()
    with torch.no_grad():
        a, b = backbone(train[0]), backbone(test[0])
    backbone.train()
    mean, std = a.mean(0), a.std(0) + 1e-6
    a, b = (a - mean) / std, (b - mean) / std
    target = F.one_hot(train[1], cfg["classes"]).float()
    w = torch.linalg.solve(a.T @ a + torch.eye(a.size(1)), a.T @ (target - target.mean(0)))
    return ((b @ w).argmax(1) == test[1]).float().mean().item()


images, labels = patches(640)
test = patches(200)
model = SimSiam(cfg["dim"])
optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=cfg["momentum"], weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg["epochs"] * (len(images) // cfg["batch"]))
for epoch in range(cfg["epochs"]):
    model.train()
    for index in torch.randperm(len(images)).split(cfg["batch"]):
        x = images[index]
        p1, p2, z1, z2 = model(augment(x), augment(x))
        loss = 0.5 * (D(p1, z2) + D(p2, z1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    spread = F.normalize(z1.detach(), dim=1).std(0).mean().item() * cfg["dim"] ** 0.5
    print(f"epoch {epoch} loss {loss.item():.3f} spread {spread:.3f} probe {probe(model.backbone, (images, labels), test):.3f}")
