import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)


class MyNetwork(nn.Module):
    def __init__(self, in_features=2, hidden=64, depth=4, n_classes=3):
        super().__init__()
        self.activation = nn.Tanh()
        sizes = [in_features] + [hidden] * (depth - 1) + [8]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:])])
        self.classifier = nn.Linear(8, n_classes)

    def forward(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.classifier(x)


def spirals(n_per_class, noise=0.08):
    xs, ys = [], []
    for k in range(3):
        t = torch.linspace(0.05, 1, n_per_class)
        angle = 2.1 * k + 5.0 * t + noise * torch.randn(n_per_class)
        xs.append(torch.stack([t * torch.sin(angle), t * torch.cos(angle)], dim=1))
        ys.append(torch.full((n_per_class,), k))
    return 1.8 * torch.cat(xs), torch.cat(ys)


x_train, y_train = spirals(300)
x_test, y_test = spirals(80)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=30, shuffle=True)

model = MyNetwork()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(25):
    model.train()
    total = 0.0
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
    if epoch % 6 == 0:
        model.eval()
        with torch.no_grad():
            acc = (model(x_test).argmax(1) == y_test).float().mean().item()
        print(f"epoch {epoch:2d} | loss {total / len(x_train):.4f} | test acc {acc:.3f}")
