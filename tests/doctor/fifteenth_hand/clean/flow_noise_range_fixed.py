import math

import torch
from torch import nn

torch.manual_seed(11)


class TrainConfig:
    num_train_timesteps = 1000
    min_noising_strength = 0.3
    max_noising_strength = 1.0
    learning_rate = 2e-3
    batch_size = 256
    steps = 900


class Velocity(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.register_buffer("freq", 2 ** torch.arange(4).float() * math.pi)
        self.net = nn.Sequential(nn.Linear(2 + 8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, sigma):
        ang = sigma[:, None] * self.freq / 2
        return self.net(torch.cat([x, ang.sin(), ang.cos()], dim=1))


def draw_latents(n, generator=None):
    k = torch.randint(0, 6, (n,), generator=generator).float()
    centre = 1.2 * torch.stack([torch.cos(k * math.pi / 3), torch.sin(k * math.pi / 3)], dim=1)
    return centre + 0.08 * torch.randn(n, 2, generator=generator)


class FlowMatchingSetup:
    def __init__(self, config):
        self.config = config
        n = config.num_train_timesteps
        self.sigmas = torch.arange(1, n + 1) / n

    def get_timesteps(self, batch_size, generator=None):
        n = self.config.num_train_timesteps
        low = int(n * self.config.min_noising_strength)
        high = int(n * self.config.max_noising_strength)
        return torch.randint(low, high, (batch_size,), generator=generator)

    def predict(self, model, latents, generator=None):
        timestep = self.get_timesteps(latents.shape[0], generator)
        sigma = self.sigmas[timestep]
        noise = torch.randn(latents.shape, generator=generator)
        noisy = (1 - sigma[:, None]) * latents + sigma[:, None] * noise
        return {"predicted": model(noisy, sigma), "target": noise - latents, "sigma": sigma}


@torch.no_grad()
def error_by_noise_level(model, levels, n=4000):
    """Error of the predicted velocity for latents with a given share of noise."""
    model.eval()
    g = torch.Generator().manual_seed(3)
    latents, noise = draw_latents(n, g), torch.randn(n, 2, generator=g)
    rows = {}
    for level in levels:
        sigma = torch.full((n,), level)
        noisy = (1 - level) * latents + level * noise
        rows[level] = round(nn.functional.mse_loss(model(noisy, sigma), noise - latents).item(), 3)
    return rows


def main():
    config = TrainConfig()
    setup, model = FlowMatchingSetup(config), Velocity()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    seen = []
    for step in range(config.steps):
        model.train()
        out = setup.predict(model, draw_latents(config.batch_size))
        loss = nn.functional.mse_loss(out["predicted"], out["target"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        seen.append(out["sigma"])
        if (step + 1) % 300 == 0:
            model.eval()
            with torch.no_grad():
                g = torch.Generator().manual_seed(1)
                val = setup.predict(model, draw_latents(2048, g), g)
                val_loss = nn.functional.mse_loss(val["predicted"], val["target"]).item()
            print(f"step {step + 1} loss {loss.item():.4f} val_loss {val_loss:.4f}")
    hist = torch.histc(torch.cat(seen), bins=5, min=0, max=1)
    print("noise levels used in training:", [round(v, 3) for v in (hist / hist.sum()).tolist()])
    print("error by noise level:", error_by_noise_level(model, (0.1, 0.4, 0.7, 0.9, 1.0)))


if __name__ == "__main__":
    main()
