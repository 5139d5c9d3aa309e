import math

import torch
import torch.nn.functional as F
from torch import nn


def tones(count, seed):
    """Waves of 128 samples with one of eight pairs of pitches."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 8, (count,), generator=g)
    time = torch.arange(128) / 128
    waves = torch.sin(2 * math.pi * (3 + kind)[:, None] * time) + 0.5 * torch.sin(2 * math.pi * (17 - kind)[:, None] * time)
    return waves, kind


def augment(waves):
    """A shift of each row's own, a gain and noise."""
    shift = torch.randint(0, waves.size(1), (len(waves), 1))
    index = (torch.arange(waves.size(1)) + shift) % waves.size(1)
    return waves.gather(1, index) * (0.5 + torch.rand(len(waves), 1)) + 0.4 * torch.randn_like(waves)


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 9, 2, 4), nn.ReLU(), nn.Conv1d(16, 32, 9, 2, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, dim)
        )
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, waves):
        features = self.net(waves.unsqueeze(1))
        return features, self.projector(features)


class NTXentLoss(nn.Module):
    def __init__(self, temperature=0.2):
        super().__init__()
        self.temperature = temperature

    def forward(self, z_i, z_j):
        n = z_i.size(0)
        z = F.normalize(torch.cat([z_i, z_j]), dim=0)  # <- here
        sim = z @ z.t() / self.temperature  # <- here
        sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
        positives = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return F.cross_entropy(sim, positives)


@torch.no_grad()
def nearest_neighbour(model, bank, query):
    model.eval()
    keys, _ = model(bank[0])
    found, _ = model(query[0])
    near = (F.normalize(found, dim=1) @ F.normalize(keys, dim=1).t()).argmax(dim=1)
    model.train()
    return (bank[1][near] == query[1]).float().mean().item()


def main():
    torch.manual_seed(6)
    waves, kinds = tones(768, 1)
    bank = (augment(waves[:256]), kinds[:256])
    query_waves, query_kinds = tones(128, 2)
    query = (augment(query_waves), query_kinds)
    model, criterion = Encoder(), NTXentLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(8):
        for index in torch.randperm(len(waves)).split(64):
            batch = waves[index]
            loss = criterion(model(augment(batch))[1], model(augment(batch))[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, nearest neighbour right {nearest_neighbour(model, bank, query):.3f}")


if __name__ == "__main__":
    main()
