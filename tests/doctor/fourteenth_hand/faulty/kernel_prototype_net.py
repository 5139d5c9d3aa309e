import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)

N_CLASS, DIM = 6, 20
centres = torch.randn(N_CLASS, DIM)


def sample(n):
    y = torch.randint(0, N_CLASS, (n,))
    spread = torch.where(torch.rand(n, 1) < 0.02, 6.0, 0.9)
    return centres[y] + spread * torch.randn(n, DIM), y


x_train, y_train = sample(1500)
x_test, y_test = sample(500)
mean, std = x_train.mean(0), x_train.std(0)
x_train, x_test = (x_train - mean) / std, (x_test - mean) / std
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=50, shuffle=True)
test_loader = DataLoader(TensorDataset(x_test, y_test), batch_size=250)


class PrototypeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 5))
        self.prototypes = nn.Parameter(torch.randn(N_CLASS, 5))

    def forward(self, x):
        z = self.embed(x)
        tensor1 = -((z.unsqueeze(1) - self.prototypes) ** 2).sum(-1)
        tensor2 = torch.exp(tensor1)
        return tensor2 / tensor2.sum(1, keepdim=True)


net = PrototypeNet()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)


def criterion(tensor3, target):
    return -torch.log(tensor3.gather(1, target.unsqueeze(1))).mean()


for epoch in range(6):
    net.train()
    running = 0.0
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(x)

    net.eval()
    right = 0
    with torch.no_grad():
        for x, y in test_loader:
            right += (net(x).argmax(1) == y).sum().item()
    w = net.embed[0].weight
    print(f"epoch {epoch} loss {running / len(x_train):.4f} test acc {right / len(x_test):.3f} |w| {w.norm().item():.3f}")
