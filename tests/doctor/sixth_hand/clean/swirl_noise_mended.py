"""Denoising diffusion of points on a swirl, with a moving average of the weights for sampling."""
import copy
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader

STEPS = 50


def swirl(count, seed):
    generator = torch.Generator().manual_seed(seed)
    t = torch.rand(count, generator=generator) * 9 + 1
    points = torch.stack([t * torch.cos(t), t * torch.sin(t)], 1) / 5
    return points + 0.05 * torch.randn(count, 2, generator=generator)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.time = nn.Embedding(STEPS, 16)
        self.net = nn.Sequential(nn.Linear(18, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


class Average:
    def __init__(self, model, decay=0.98):
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for slow, fast in zip(self.model.parameters(), model.parameters()):
            slow.mul_(self.decay).add_(fast, alpha=1 - self.decay)


betas = torch.linspace(1e-4, 0.1, STEPS)
alphas = (1 - betas).cumprod(0)


def loss_of(model, x):
    t = torch.randint(0, STEPS, (len(x),))
    noise = torch.randn_like(x)
    level = alphas[t].unsqueeze(1)
    return nn.functional.mse_loss(model(level.sqrt() * x + (1 - level).sqrt() * noise, t), noise)


@torch.no_grad()
def sample(model, count):
    model.eval()
    x = torch.randn(count, 2)
    for step in reversed(range(STEPS)):
        t = torch.full((count,), step)
        x = (x - betas[step] / (1 - alphas[step]).sqrt() * model(x, t)) / (1 - betas[step]).sqrt()
        if step:
            x = x + betas[step].sqrt() * torch.randn_like(x)
    return x


@torch.no_grad()
def validate(model, x):
    model.eval()
    torch.manual_seed(0)
    return loss_of(model, x).item()


def main():
    torch.manual_seed(15)
    model = Denoiser()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader, held_out = DataLoader(swirl(1024, 1), 64, shuffle=True), swirl(256, 2)
    with tempfile.TemporaryDirectory() as folder:
        path, best = os.path.join(folder, "best.pt"), float("inf")
        for epoch in range(5):
            model.train()
            for x in loader:
                loss = loss_of(model, x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                average.update(model)
            state = torch.get_rng_state()
            score = validate(average.model, held_out)
            torch.set_rng_state(state)
            print(f"epoch {epoch}: loss {loss.item():.3f}, of the average {score:.3f}")
            if score < best:
                best = score
                torch.save(average.model.state_dict(), path)
        final = Denoiser()
        final.load_state_dict(torch.load(path))
        print("spread of samples:", sample(final, 200).std(0).tolist())


if __name__ == "__main__":
    main()
