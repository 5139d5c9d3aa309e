"""Unconditional diffusion of points on two rings."""
import argparse
import math

import torch
from torch import nn

from rings_ddpm_twin_parts.ema import EMAModel
from rings_ddpm_twin_parts.scheduler import DDPMScheduler


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.width = width
        self.inp, self.time = nn.Linear(2, width), nn.Linear(width, width)
        self.mid, self.out = nn.Linear(width, width), nn.Linear(width, 2)

    def embed(self, t):
        freqs = torch.exp(-math.log(1000) * torch.arange(self.width // 2) / (self.width // 2))
        angles = t[:, None].float() * freqs
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    def forward(self, x, t):
        h = nn.functional.silu(self.inp(x) + self.time(self.embed(t)))
        return self.out(nn.functional.silu(self.mid(h)))


def rings(count):
    angle = 2 * math.pi * torch.rand(count)
    radius = torch.where(torch.rand(count) < 0.5, 0.5, 1.2) + 0.03 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def evaluate(model, ema, scheduler):
    """How far samples of the averaged weights are from the nearer ring."""
    ema.store(model.parameters())
    ema.copy_to(model.parameters())
    samples = scheduler.sample(model, 256)
    ema.restore(model.parameters())
    radius = samples.norm(dim=1)
    return torch.minimum((radius - 0.5).abs(), (radius - 1.2).abs()).mean().item()


def main(args):
    torch.manual_seed(args.seed)
    model, scheduler = Net(), DDPMScheduler(args.timesteps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    ema = EMAModel(model.parameters(), decay=args.ema_decay)
    data = rings(2048)
    for epoch in range(args.num_epochs):
        total = 0.0
        for clean in torch.split(data[torch.randperm(len(data))], args.batch_size):
            noise = torch.randn_like(clean)
            t = torch.randint(0, args.timesteps, (len(clean),))
            loss = nn.functional.mse_loss(model(scheduler.add_noise(clean, noise, t), t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.step(model.parameters())
            total += loss.item()
        print(f"epoch {epoch}: loss {total / (len(data) // args.batch_size):.4f}, samples off by {evaluate(model, ema, scheduler):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--timesteps", type=int, default=40)
    parser.add_argument("--ema-decay", type=float, default=0.98)
    parser.add_argument("--seed", type=int, default=4)
    main(parser.parse_args())
