import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Configs:
    epochs = 8
    temperature = 5.0
    soft_targets_weight = 0.9
    label_loss_weight = 0.1
    learning_rate = 2.5e-3

    def __init__(self, train_loader, valid_loader, large, model):
        self.train_loader, self.valid_loader = train_loader, valid_loader
        self.large, self.model = large, model
        self.kl_div_loss = nn.KLDivLoss(reduction="batchmean", log_target=True)
        self.loss_func = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)

    def step(self, data, target):
        with torch.no_grad():
            large_logits = self.large(data)
        output = self.model(data)

        soft_targets = F.log_softmax(large_logits / self.temperature, dim=-1)
        soft_prob = F.log_softmax(output / self.temperature, dim=-1)
        soft_targets_loss = self.kl_div_loss(soft_prob, soft_targets) * self.temperature ** 2
        label_loss = self.loss_func(output, target)
        loss = self.soft_targets_weight * soft_targets_loss + self.label_loss_weight * label_loss

        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return soft_targets_loss.item(), label_loss.item(), loss.item()

    def run(self):
        self.large.eval()
        for epoch in range(self.epochs):
            self.model.train()
            rows = [self.step(data, target) for data, target in self.train_loader]
            kl, label, loss = np.mean(rows, axis=0)
            print(f"{epoch}: loss.kl_div {kl:.4f} loss.nll {label:.4f} loss.train {loss:.4f} accuracy.valid {accuracy(self.model, self.valid_loader):.4f}")


class LargeModel(nn.Module):
    def __init__(self, widths):
        super().__init__()
        layers, prev = [], 3
        for w in widths:
            layers += [nn.Conv2d(prev, w, 3, padding=1), nn.BatchNorm2d(w), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            prev = w
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(prev, 10)

    def forward(self, x):
        return self.fc(self.layers(x).mean(dim=(-1, -2)))


def images(n, seed, label_noise=0.0):
    g = torch.Generator().manual_seed(seed)
    kernels = torch.randn(10, 3, 5, 5, generator=torch.Generator().manual_seed(5))
    y = torch.randint(0, 10, (n,), generator=g)
    x = torch.randn(n, 3, 16, 16, generator=g)
    for i in range(n):
        for _ in range(3):
            r, c = torch.randint(0, 12, (2,), generator=g).tolist()
            x[i, :, r:r + 5, c:c + 5] += 1.6 * kernels[y[i]]
    noisy = torch.rand(n, generator=g) < label_noise
    y = torch.where(noisy, torch.randint(0, 10, (n,), generator=g), y)
    return TensorDataset(x / 1.6, y)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hit = sum((model(data).argmax(1) == target).sum().item() for data, target in loader)
    return hit / len(loader.dataset)


def train_large(model, loader, epochs=4):
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-3)
    for _ in range(epochs):
        model.train()
        for data, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(data), target).backward()
            optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(8)
    valid_loader = DataLoader(images(500, 3), batch_size=250)
    large = LargeModel([24, 48])
    train_large(large, DataLoader(images(1500, 1), batch_size=50, shuffle=True))
    print("large model:", accuracy(large, valid_loader))
    small_loader = DataLoader(images(500, 2, label_noise=0.4), batch_size=50, shuffle=True)
    Configs(small_loader, valid_loader, large, LargeModel([8, 16])).run()
