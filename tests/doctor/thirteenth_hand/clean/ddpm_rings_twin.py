"""Denoising diffusion on two rings in the plane, small enough for a laptop."""

import argparse
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


def rings(n, generator=None):
    angle = 2 * math.pi * torch.rand(n, generator=generator)
    radius = torch.where(torch.rand(n, generator=generator) < 0.5, 0.5, 1.6)
    radius = radius + 0.08 * torch.randn(n, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freqs", torch.exp(-math.log(1000.0) * torch.arange(dim // 2) / (dim // 2)))

    def forward(self, t):
        phase = t[:, None].float() * self.freqs[None]
        return torch.cat([phase.sin(), phase.cos()], dim=-1)


class Denoiser(nn.Module):
    def __init__(self, width=128, tdim=32):
        super().__init__()
        self.temb = nn.Sequential(TimeEmbedding(tdim), nn.Linear(tdim, width), nn.SiLU())
        self.inp = nn.Linear(2 + 2 * 2 * 3, width)
        self.mid = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        emb = self.temb(t)
        waves = [w for k in (1.0, 2.0, 4.0) for w in ((k * x).sin(), (k * x).cos())]
        h = self.inp(torch.cat([x, *waves], dim=1))
        for layer in self.mid:
            h = h + F.silu(layer(h + emb))
        return self.out(h)


class EMA:
    """Exponential moving average of a model's weights."""

    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


class Diffusion:
    def __init__(self, timesteps=100, beta_start=1e-4, beta_end=0.12):
        self.T = timesteps
        self.betas = torch.linspace(beta_start, beta_end, timesteps)
        self.alphas = 1 - self.betas
        self.alpha_bars = torch.cumprod(self.alphas, dim=0)

    def q_sample(self, x0, t, noise):
        ab = self.alpha_bars[t][:, None]
        return ab.sqrt() * x0 + (1 - ab).sqrt() * noise

    def loss(self, model, x0):
        t = torch.randint(0, self.T, (x0.shape[0],))
        noise = torch.randn_like(x0)
        pred = model(self.q_sample(x0, t, noise), t)
        return F.mse_loss(pred, noise)

    @torch.no_grad()
    def sample(self, model, n):
        x = torch.randn(n, 2)
        for step in reversed(range(self.T)):
            t = torch.full((n,), step)
            eps = model(x, t)
            coef = self.betas[step] / (1 - self.alpha_bars[step]).sqrt()
            x = (x - coef * eps) / self.alphas[step].sqrt()
            if step > 0:
                x = x + self.betas[step].sqrt() * torch.randn_like(x)
        return x


def ring_error(points):
    r = points.norm(dim=1)
    return torch.minimum((r - 0.5).abs(), (r - 1.6).abs()).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=1200)
    p.add_argument("--batch", type=int, default=200)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=7)
    args = p.parse_args()
    torch.manual_seed(args.seed)

    data = rings(8000)
    diffusion = Diffusion()
    model = Denoiser()
    ema = EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.steps)

    running = 0.0
    for step in range(1, args.steps + 1):
        x0 = data[torch.randint(0, len(data), (args.batch,))]
        loss = diffusion.loss(model, x0)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        ema.update(model)
        running += loss.item()
        if step % 240 == 0:
            samples = diffusion.sample(ema.shadow, 512)
            print(f"step {step}  loss {running / 240:.4f}  distance to the rings {ring_error(samples):.3f}")
            running = 0.0
    torch.save(ema.shadow.state_dict(), "ddpm_rings.pt")


if __name__ == "__main__":
    main()
