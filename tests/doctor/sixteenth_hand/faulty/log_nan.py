import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)


class LogSpectrumNet(nn.Module):
    """Learned filter bank, log compression, classifier."""

    def __init__(self, n_bins=40, n_filters=16, n_classes=4):
        super().__init__()
        self.filters = nn.Linear(n_bins, n_filters)
        self.norm = nn.LayerNorm(n_filters)
        self.fc1 = nn.Linear(n_filters, 32)
        self.fc2 = nn.Linear(32, n_classes)

    def forward(self, spectrum):
        t = self.filters(spectrum)
        t = torch.log(t)
        x = F.relu(self.fc1(self.norm(t)))
        return self.fc2(x)


def spectra(n):
    y = torch.randint(0, 4, (n,))
    bins = torch.arange(40).float()
    centre = 5 + 10 * y[:, None] + 2 * torch.randn(n, 1)
    power = torch.exp(-(bins - centre) ** 2 / 12) * (0.5 + torch.rand(n, 1))
    return power + 0.2 * torch.rand(n, 40), y


train_x, train_y = spectra(800)
test_x, test_y = spectra(200)
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=40, shuffle=True)

net = LogSpectrumNet()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(6):
    net.train()
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    net.eval()
    with torch.no_grad():
        acc = (net(test_x).argmax(1) == test_y).float().mean().item()
    print(f"epoch {epoch} test accuracy {acc:.3f}")
