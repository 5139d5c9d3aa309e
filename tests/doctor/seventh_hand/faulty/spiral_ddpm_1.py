"""Denoising diffusion of points on a spiral, with an exponential average that is sampled from."""
import copy
import math

import torch
from torch import nn


class EMA:
    """Exponential moving average of the weights, with a decay that warms up."""

    def __init__(self, model, decay=0.995):
        self.decay, self.step = decay, 0
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    def get_decay(self):
        return min(self.decay, (1 + self.step) / (10 + self.step))  # <- here

    @torch.no_grad()
    def update(self, model):
        decay = self.get_decay()
        for kept, new in zip(self.shadow.parameters(), model.parameters()):
            kept.mul_(decay).add_(new, alpha=1 - decay)  # <- here


class Denoiser(nn.Module):
    def __init__(self, steps, width=96):
        super().__init__()
        self.time = nn.Embedding(steps, width)
        self.first, self.second, self.last = nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, x, t):
        hidden = torch.relu(self.first(x) + self.time(t))
        return self.last(torch.relu(self.second(hidden)))


class Diffusion:
    def __init__(self, steps=50):
        self.steps = steps
        self.beta = torch.linspace(1e-3, 0.15, steps)
        self.alpha_bar = torch.cumprod(1 - self.beta, 0)

    def q_sample(self, x, t, noise):
        scale = self.alpha_bar[t].unsqueeze(-1)
        return scale.sqrt() * x + (1 - scale).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, count):
        own = torch.Generator().manual_seed(42)  # the same noise after every epoch, so that the pictures can be compared
        x = torch.randn(count, 2, generator=own)
        for step in reversed(range(self.steps)):
            t = torch.full((count,), step)
            noise = model(x, t)
            x = (x - self.beta[step] / (1 - self.alpha_bar[step]).sqrt() * noise) / (1 - self.beta[step]).sqrt()
            if step:
                x = x + self.beta[step].sqrt() * torch.randn(count, 2, generator=own)
        return x


def spiral(count):
    turn = 3 * math.pi * torch.rand(count).sqrt()
    return torch.stack([turn * torch.cos(turn), turn * torch.sin(turn)], dim=1) / 6 + 0.03 * torch.randn(count, 2)


def main():
    torch.manual_seed(0)
    points = spiral(2048)
    diffusion = Diffusion()
    model = Denoiser(diffusion.steps)
    ema = EMA(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points), batch_size=64, shuffle=True)
    for epoch in range(4):
        for (x,) in loader:
            t = torch.randint(0, diffusion.steps, (len(x),))
            noise = torch.randn_like(x)
            loss = ((model(diffusion.q_sample(x, t, noise), t) - noise) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)  # <- here
        samples = diffusion.sample(ema.shadow, 256)
        nearest = torch.cdist(samples, points).min(1).values.mean()
        print(f"epoch {epoch}: loss {loss.item():.4f}, samples off by {nearest:.4f}")


if __name__ == "__main__":
    main()
