# Self-supervised features of wearable sensors: contrastive views of windows and a linear probe (trainer class)
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def windows(count, seed):
    """Five activities as sums of two rhythms on three axes, of 60 samples."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 5, (count,), generator=g)
    t = torch.arange(60.0)
    rates = torch.tensor([[0.15, 0.6], [0.3, 0.45], [0.5, 0.9], [0.22, 1.1], [0.7, 0.33]])
    mix = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(1))
    phase = 6.28 * torch.rand(count, 2, 1, generator=g)
    waves = torch.sin(rates[kind].unsqueeze(-1) * t + phase)
    x = mix[kind] @ waves
    return TensorDataset(x + 0.4 * torch.randn(x.shape, generator=g), kind)


class TwoViews:
    """Noise, scaling and a shift in time, drawn for each row anew."""

    def augment(self, x):
        x = x * (0.8 + 0.4 * torch.rand(len(x), 1, 1)) + 0.2 * torch.randn_like(x)
        shift = torch.randint(0, 60, (len(x), 1, 1))
        index = (torch.arange(60) + shift) % 60
        return x.gather(2, index.expand(-1, 3, -1))

    def __call__(self, x):
        return self.augment(x), self.augment(x)


class Encoder(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, 24, 9, stride=2), nn.ReLU(), nn.Conv1d(24, dim, 7, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
        )

    def forward(self, x):
        return self.net(x)


class SimCLR:
    def __init__(self, epochs=14, batch_size=100, temperature=0.2, lr=0.3):
        self.epochs, self.temperature = epochs, temperature
        self.encoder = Encoder()
        self.projector = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 24))
        self.loader = DataLoader(windows(1000, 2), batch_size=batch_size, shuffle=True, drop_last=True)
        self.views = TwoViews()
        params = [*self.encoder.parameters(), *self.projector.parameters()]
        self.optimizer = torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=1e-5)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=epochs * len(self.loader))
        self.criterion = nn.CrossEntropyLoss()

    def info_nce_loss(self, features):
        n = len(features) // 2
        features = F.normalize(features, dim=1)
        similarity = features @ features.t() / self.temperature
        similarity = similarity.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
        partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return self.criterion(similarity, partner)

    def train(self):
        for epoch in range(self.epochs):
            self.encoder.train()
            total = 0.0
            for x, _ in self.loader:
                a, b = self.views(x)
                features = self.projector(self.encoder(torch.cat([a, b])))
                loss = self.info_nce_loss(features)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                total += loss.item()
            if epoch % 3 == 1:
                rate = self.optimizer.param_groups[0]["lr"]
                print(f"epoch {epoch} loss {total / len(self.loader):.4f} rate {rate:.4f}")


def linear_probe(encoder, train, test):
    encoder.eval()
    with torch.no_grad():
        a, b = encoder(train.tensors[0]), encoder(test.tensors[0])
    mean, std = a.mean(0), a.std(0) + 1e-6
    a, b = (a - mean) / std, (b - mean) / std
    head = nn.Linear(a.size(1), 5)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(60):
        loss = F.cross_entropy(head(a), train.tensors[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (head(b).argmax(1) == test.tensors[1]).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(6)
    model = SimCLR()
    labelled, test = windows(60, 3), windows(400, 4)
    print(f"probe before: {linear_probe(model.encoder, labelled, test):.3f}")
    model.train()
    print(f"probe after: {linear_probe(model.encoder, labelled, test):.3f}")
