"""Denoising diffusion of 12x12 glyphs, class-conditional, with an exponential moving average for sampling."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

T = 100
CLASSES = 4


def cosine_beta_schedule(timesteps, s=0.008):
    x = torch.linspace(0, timesteps, timesteps + 1)
    alphas = torch.cos(((x / timesteps) + s) / (1 + s) * math.pi / 2) ** 2
    betas = 1 - alphas[1:] / alphas[:-1]
    return betas.clamp(0, 0.999)


def glyphs(count):
    labels = torch.randint(0, CLASSES, (count,))
    base = -torch.ones(CLASSES, 12, 12)
    base[0, 5:7, 1:11] = 1
    base[1, 1:11, 5:7] = 1
    base[2, 2:10, 2:10] = 1
    base[3, torch.arange(12), torch.arange(12)] = 1
    shift = torch.randint(-1, 2, (count,)).tolist()
    images = torch.stack([base[c].roll(s, 0) for c, s in zip(labels, shift)])
    return (images + 0.1 * torch.randn_like(images)).unsqueeze(1), labels


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, -math.log(1000), dim // 2)))
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t):
        angle = t[:, None].float() * self.freqs
        return self.mlp(torch.cat([angle.sin(), angle.cos()], dim=-1))


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.time = TimeEmbedding(width)
        self.label = nn.Embedding(CLASSES, width)
        self.inp = nn.Conv2d(1, width, 3, padding=1)
        self.mid = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(3)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, width) for _ in range(3)])
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x, t, y):
        cond = (self.time(t) + self.label(y))[:, :, None, None]
        h = self.inp(x)
        for conv, norm in zip(self.mid, self.norms):
            h = h + conv(F.silu(norm(h) + cond))
        return self.out(F.silu(h))


class EMA:
    def __init__(self, model, decay=0.95):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for ema_p, p in zip(self.model.parameters(), model.parameters()):
            ema_p = ema_p * self.decay + p * (1 - self.decay)


class Diffusion:
    def __init__(self):
        self.betas = cosine_beta_schedule(T)
        self.alphas_bar = torch.cumprod(1 - self.betas, 0)

    def q_sample(self, x0, t, noise):
        a = self.alphas_bar[t][:, None, None, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, n, generator):
        x = torch.randn(n, 1, 12, 12, generator=generator)
        y = torch.arange(n) % CLASSES
        for step in reversed(range(T)):
            t = torch.full((n,), step)
            eps = model(x, t, y)
            beta, abar = self.betas[step], self.alphas_bar[step]
            x = (x - beta / (1 - abar).sqrt() * eps) / (1 - beta).sqrt()
            if step > 0:
                x = x + beta.sqrt() * torch.randn(x.shape, generator=generator)
        return x.clamp(-1, 1)


def main():
    torch.manual_seed(42)
    images, labels = glyphs(512)
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    model, diffusion = Denoiser(), Diffusion()
    ema = EMA(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(4):
        for x0, y in loader:
            t = torch.randint(0, T, (len(x0),))
            noise = torch.randn_like(x0)
            loss = F.mse_loss(model(diffusion.q_sample(x0, t, noise), t, y), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
        pictures = diffusion.sample(ema.model, 8, torch.Generator().manual_seed(0))
        print(f"epoch {epoch} loss {loss.item():.3f} sample mean {pictures.mean():.3f} std {pictures.std():.3f}")


if __name__ == "__main__":
    main()
