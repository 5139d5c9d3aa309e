import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
N_CLASSES = 6


def textures(n, gen):
    y = torch.randint(0, N_CLASSES, (n,), generator=gen)
    yy, xx = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    angle = (y * 30.0).deg2rad().view(-1, 1, 1)
    phase = 6.28 * torch.rand(n, 1, 1, generator=gen)
    wave = torch.sin(0.9 * (xx * angle.cos() + yy * angle.sin()) + phase)
    return (wave + 0.4 * torch.randn(n, 20, 20, generator=gen)).unsqueeze(1), y


def augment(x):
    top, left = torch.randint(0, 5, (2,)).tolist()
    x = x[:, :, top : top + 16, left : left + 16]
    gain = 0.7 + 0.6 * torch.rand(len(x), 1, 1, 1)
    return x * gain + 0.2 * torch.randn_like(x)


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, x):
        h = self.body(x)
        return h, F.normalize(self.head(h), dim=1)


log_scale = nn.Parameter(torch.tensor(1.6))


def info_nce(z1, z2):
    sim = z1 @ z2.t() * log_scale.exp()
    labels = torch.arange(len(z1))
    return (F.cross_entropy(sim, labels) + F.cross_entropy(sim.t(), labels)) / 2


gen = torch.Generator().manual_seed(0)
images, targets = textures(1024, gen)
test_images, test_targets = textures(256, gen)
encoder = Encoder()
opt = torch.optim.Adam([*encoder.parameters(), log_scale], lr=1e-3)

encoder.train()
for epoch in range(4):
    for idx in torch.randperm(len(images)).split(64):
        batch = images[idx]
        _, z1 = encoder(augment(batch))
        _, z2 = encoder(augment(batch))
        loss = info_nce(z1, z2)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("contrastive", epoch, round(loss.item(), 3))

encoder.eval()
for p in encoder.parameters():
    p.requires_grad_(False)
probe = nn.Linear(32, N_CLASSES)
opt = torch.optim.Adam(probe.parameters(), lr=1e-2)
crop = lambda x: x[:, :, 2:18, 2:18]
for epoch in range(6):
    for idx in torch.randperm(len(images)).split(128):
        h, _ = encoder(crop(images[idx]))
        loss = F.cross_entropy(probe(h), targets[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
with torch.no_grad():
    acc = (probe(encoder(crop(test_images))[0]).argmax(1) == test_targets).float().mean()
print("linear probe", round(acc.item(), 3))
