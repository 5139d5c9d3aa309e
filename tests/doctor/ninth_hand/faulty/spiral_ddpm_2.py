"""A denoising diffusion model on a spiral of points."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS, BATCH, TOTAL = 50, 128, 900


def spiral(n):
    t = torch.rand(n).sqrt() * 3 * math.pi
    xy = torch.stack([t * t.cos(), t * t.sin()], 1) / (1.5 * math.pi)
    return xy + 0.03 * torch.randn(n, 2)


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.time = nn.Embedding(STEPS, 16)
        self.net = nn.Sequential(nn.Linear(18, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], dim=1))


class Diffusion:
    def __init__(self):
        beta = torch.linspace(1e-3, 0.12, STEPS)
        self.alpha = 1 - beta
        self.bar = self.alpha.cumprod(0)
        self.beta = beta

    def loss(self, model, x0):
        t = torch.randint(0, STEPS, (len(x0),))
        noise = torch.randn_like(x0)
        a = self.bar[t].unsqueeze(1)
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        return F.mse_loss(model(xt, t), noise)

    @torch.no_grad()
    def sample(self, model, n):
        x = torch.randn(n, 2)
        for t in reversed(range(STEPS)):
            eps = model(x, torch.full((n,), t))
            x = (x - self.beta[t] / (1 - self.bar[t]).sqrt() * eps) / self.alpha[t].sqrt()
            if t:
                x = x + self.beta[t].sqrt() * torch.randn_like(x)
        return x


def update_ema(ema, model, decay=0.98):
    with torch.no_grad():
        for old, new in zip(ema.parameters(), model.parameters()):
            old.mul_(decay).add_(new, alpha=1 - decay)  # <- here


def main():
    torch.manual_seed(0)
    data = spiral(4096)
    mean, std = data.mean(0), data.std(0)
    data = (data - mean) / std
    model, diffusion = Denoiser(), Diffusion()
    ema = model  # <- here
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(TOTAL):
        x0 = data[torch.randint(0, len(data), (BATCH,))]
        loss = diffusion.loss(model, x0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_ema(ema, model)  # <- here
        if (step + 1) % 300 == 0:
            print(step + 1, round(loss.item(), 4))
    samples = diffusion.sample(ema.eval(), 500)
    nearest = torch.cdist(samples, data).min(1).values.mean()
    print("mean distance of samples to the data", round(nearest.item(), 4))


if __name__ == "__main__":
    main()
