import torch


class DDPMScheduler:
    def __init__(self, steps):
        self.steps = steps
        self.betas = torch.linspace(1e-3, 0.2, steps)
        self.alphas_cumprod = torch.cumprod(1 - self.betas, 0)

    def add_noise(self, clean, noise, t):
        a = self.alphas_cumprod[t].unsqueeze(1)
        return a.sqrt() * clean + (1 - a).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, count):
        x = torch.randn(count, 2)
        for i in reversed(range(self.steps)):
            t = torch.full((count,), i)
            x = (x - self.betas[i] / (1 - self.alphas_cumprod[i]).sqrt() * model(x, t)) / (1 - self.betas[i]).sqrt()
            if i > 0:
                x = x + self.betas[i].sqrt() * torch.randn_like(x)
        return x
