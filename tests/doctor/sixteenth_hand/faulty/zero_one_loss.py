import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(19)


class ZeroOneLoss(nn.Module):
    """One for every wrong prediction, zero for a right one."""

    def forward(self, input, target):
        wrong = 0.0
        for score, label in zip(input, target):
            if (score > 0) != (label > 0.5):
                wrong += 1.0
        return torch.tensor(wrong / len(target), requires_grad=True)


def make_moons(n):
    label = torch.randint(0, 2, (n,)).float()
    angle = torch.rand(n) * 3.1416
    x = torch.cos(angle) * (1 - 2 * label) + label
    y = torch.sin(angle) * (1 - 2 * label) + 0.4 * label
    points = torch.stack([x, y], dim=1) + 0.12 * torch.randn(n, 2)
    return points - torch.tensor([0.5, 0.2]), label


x_train, y_train = make_moons(600)
x_test, y_test = make_moons(200)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=30, shuffle=True)

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
loss_fn = ZeroOneLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(10):
    model.train()
    epoch_loss = 0.0
    for points, label in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(points).squeeze(1), label)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    model.eval()
    with torch.no_grad():
        acc = ((model(x_test).squeeze(1) > 0).float() == y_test).float().mean().item()
    print(f"epoch {epoch} loss {epoch_loss / len(loader):.4f} test accuracy {acc:.3f}")
