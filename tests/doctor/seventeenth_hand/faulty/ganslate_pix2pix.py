import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(7)


class PairedSlices(Dataset):
    """Low-contrast slice A -> full-contrast slice B, stored patient by patient."""

    def __init__(self, patients, slices, seed):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[0:16, 0:16]
        self.a, self.b = [], []
        for p in range(patients):
            radius, noise = rng.uniform(3, 6), 0.05 if p < patients - 1 else 0.35
            for s in range(slices if p < patients - 1 else 2):
                cy, cx = rng.uniform(5, 11, 2)
                b = np.tanh(radius - np.hypot(yy - cy, xx - cx))
                a = 0.4 * b + noise * rng.normal(size=b.shape)
                self.a.append(a)
                self.b.append(b)
        self.a = torch.tensor(np.array(self.a), dtype=torch.float32).unsqueeze(1)
        self.b = torch.tensor(np.array(self.b), dtype=torch.float32).unsqueeze(1)

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return {"A": self.a[i], "B": self.b[i]}


class UnetGenerator(nn.Module):
    def __init__(self, nf=16):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, nf, 4, 2, 1), nn.InstanceNorm2d(nf), nn.ReLU())
        self.mid = nn.Sequential(nn.Conv2d(nf, nf, 3, 1, 1), nn.InstanceNorm2d(nf), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * nf, nf, 4, 2, 1)
        self.out = nn.Sequential(nn.ReLU(), nn.Conv2d(nf + 1, 1, 3, 1, 1), nn.Tanh())

    def forward(self, x):
        d = self.down(x)
        u = self.up(torch.cat([d, self.mid(d)], 1))
        return self.out(torch.cat([u, x], 1))


class PatchDiscriminator(nn.Module):
    def __init__(self, nf=16):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(2, nf, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(nf, nf, 4, 2, 1),
                                   nn.LeakyReLU(0.2), nn.Conv2d(nf, 1, 3, 1, 1))

    def forward(self, a, b):
        return self.model(torch.cat([a, b], 1))


class Pix2Pix:
    def __init__(self, lambda_pix2pix=30.0):
        self.G, self.D = UnetGenerator(), PatchDiscriminator()
        self.opt_G = torch.optim.Adam(self.G.parameters(), lr=1e-3, betas=(0.5, 0.999))
        self.opt_D = torch.optim.Adam(self.D.parameters(), lr=1e-3, betas=(0.5, 0.999))
        self.adv = nn.MSELoss()
        self.lambda_pix2pix = lambda_pix2pix

    def optimize_parameters(self, real_A, real_B):
        self.G.train()
        fake_B = self.G(real_A)
        pred_real, pred_fake = self.D(real_A, real_B), self.D(real_A, fake_B.detach())
        loss_D = 0.5 * (self.adv(pred_real, torch.ones_like(pred_real)) +
                        self.adv(pred_fake, torch.zeros_like(pred_fake)))
        self.opt_D.zero_grad()
        loss_D.backward()
        self.opt_D.step()

        pred = self.D(real_A, fake_B)
        loss_G = self.adv(pred, torch.ones_like(pred)) + self.lambda_pix2pix * (fake_B - real_B).abs().mean()
        self.opt_G.zero_grad()
        loss_G.backward()
        self.opt_G.step()
        return loss_D.item(), loss_G.item()

    @torch.no_grad()
    def infer(self, real_A):
        self.G.eval()
        return self.G(real_A)


class ValTestMetrics:
    """Per-slice metrics, in the range [-1, 1]."""

    def get_metrics(self, pred, target):
        err = (pred - target).flatten(1)
        mse = err.pow(2).mean(1)
        return {"mae": err.abs().mean(1), "mse": mse, "psnr": 10 * torch.log10(4.0 / mse)}


class BaseValTestEngine:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.metricizer = ValTestMetrics()

    def run(self, iteration):
        metrics = {}
        for data in self.loader:
            fake_B = self.model.infer(data["A"])
            for name, values in self.metricizer.get_metrics(fake_B, data["B"]).items():
                metrics.setdefault(name, []).append(values.mean().item())
        metrics = {name: float(np.mean(values)) for name, values in metrics.items()}
        print(f"[iter {iteration}] " + "  ".join(f"{k}: {v:.4f}" for k, v in metrics.items()))
        return metrics


def main():
    train_loader = DataLoader(PairedSlices(13, 16, seed=1), batch_size=8, shuffle=True, drop_last=True)
    val_loader = DataLoader(PairedSlices(4, 16, seed=2), batch_size=16)
    model = Pix2Pix()
    validator = BaseValTestEngine(model, val_loader)
    iteration = 0
    for epoch in range(6):
        for data in train_loader:
            iteration += 1
            loss_D, loss_G = model.optimize_parameters(data["A"], data["B"])
        print(f"epoch {epoch + 1}: D {loss_D:.3f} G {loss_G:.3f}")
        if (epoch + 1) % 2 == 0:
            validator.run(iteration)


if __name__ == "__main__":
    main()
