# Denoising diffusion on two moons, with an average of the weights for sampling (flat script)
import copy
import math

import torch
import torch.nn as nn
from sklearn.datasets import make_moons
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(17)
T = 60
points, _ = make_moons(3000, noise=0.05, random_state=0)
data = torch.tensor(points, dtype=torch.float32)
data = (data - data.mean(0)) / data.std(0)
loader = DataLoader(TensorDataset(data), batch_size=100, shuffle=True)

betas = torch.linspace(1e-3, 0.12, T)
alphas = 1.0 - betas
alphas_bar = torch.cumprod(alphas, dim=0)


class TimeEmbedding(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.arange(dim // 2) * (-math.log(200.0) / (dim // 2))))

    def forward(self, t):
        angles = t[:, None].float() * self.freqs[None]
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class Denoiser(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.time = TimeEmbedding()
        self.inp = nn.Linear(2 + 24, hidden)
        self.blocks = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(3)])
        self.out = nn.Linear(hidden, 2)

    def forward(self, x, t):
        h = torch.nn.functional.silu(self.inp(torch.cat([x, self.time(t)], dim=1)))
        for norm, block in zip(self.norms, self.blocks):
            h = h + torch.nn.functional.silu(block(norm(h)))
        return self.out(h)


class EMA:
    def __init__(self, model, decay=0.98):
        self.decay = decay
        self.shadow = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for averaged, current in zip(self.shadow.parameters(), model.parameters()):
            averaged.mul_(self.decay).add_(current, alpha=1 - self.decay)


def q_sample(x0, t, noise):
    a = alphas_bar[t].unsqueeze(1)
    return a.sqrt() * x0 + (1 - a).sqrt() * noise


@torch.no_grad()
def sample(model, count):
    x = torch.randn(count, 2)
    for step in reversed(range(T)):
        t = torch.full((count,), step)
        eps = model(x, t)
        x = (x - betas[step] / (1 - alphas_bar[step]).sqrt() * eps) / alphas[step].sqrt()
        if step > 0:
            x = x + betas[step].sqrt() * torch.randn_like(x)
    return x


def chamfer(a, b):
    d = torch.cdist(a, b)
    return (d.min(1).values.mean() + d.min(0).values.mean()).item()


model = Denoiser()
ema = EMA(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(1, 31):
    total = 0.0
    for (x0,) in loader:
        t = torch.randint(0, T, (len(x0),))
        noise = torch.randn_like(x0)
        predicted = model(q_sample(x0, t, noise), t)
        loss = nn.functional.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        total += loss.item()
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {total / len(loader):.4f}")

torch.save(ema.shadow.state_dict(), "moons_ema.pt")
sampler = Denoiser()
sampler.load_state_dict(torch.load("moons_ema.pt"))
sampler.eval()
print(f"chamfer of samples from the average: {chamfer(sample(sampler, 500), data[:500]):.4f}, of data to data {chamfer(data[500:1000], data[:500]):.4f}")
