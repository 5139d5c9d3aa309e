# SimCLR on drawn glyphs, then a linear probe on the frozen encoder.
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

SIZE = 16
N_TRAIN, N_TEST = 1200, 400
EPOCHS, PROBE_EPOCHS = 8, 15
BATCH = 100
TEMPERATURE = 0.3


def draw(kind, rng):
    img = np.zeros((SIZE, SIZE), dtype=np.float32)
    c = 8 + rng.integers(-1, 2)
    r = rng.integers(3, 6)
    yy, xx = np.mgrid[:SIZE, :SIZE]
    if kind == 0:
        img[c - 1 : c + 1, c - r : c + r] = 1
    elif kind == 1:
        img[c - r : c + r, c - 1 : c + 1] = 1
    elif kind == 2:
        img[np.abs(np.hypot(yy - c, xx - c) - r) < 0.9] = 1
    elif kind == 3:
        img[np.abs(yy - xx) < 1] = 1
    elif kind == 4:
        img[c - r : c + r, c - r : c + r] = 1
    else:
        img[c - 1 : c + 1, c - r : c + r] = 1
        img[c - r : c + r, c - 1 : c + 1] = 1
    return img + 0.1 * rng.standard_normal((SIZE, SIZE)).astype(np.float32)


def make(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 6, n)
    x = np.stack([draw(k, rng) for k in y])[:, None]
    return torch.from_numpy(x), torch.from_numpy(y)


def augment(img):
    dy, dx = torch.randint(-2, 3, (2,)).tolist()
    img = torch.roll(img, (dy, dx), dims=(1, 2))
    img = img * (0.6 + 0.8 * torch.rand(1)) + 0.15 * torch.randn_like(img)
    y, x = torch.randint(0, SIZE - 4, (2,)).tolist()
    img[:, y : y + 4, x : x + 4] = 0
    return img


class TwoViews(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return augment(self.images[i]), augment(self.images[i])


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 16, dim),
        )

    def forward(self, x):
        return self.net(x)


def nt_xent(z1, z2, temperature):
    n = z1.shape[0]
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    sim = z @ z.T / temperature
    sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    targets = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, targets)


torch.manual_seed(0)
x_train, y_train = make(N_TRAIN, 1)
x_test, y_test = make(N_TEST, 2)
encoder, projector = Encoder(), nn.Sequential(nn.ReLU(), nn.Linear(64, 32))
opt = torch.optim.Adam([*encoder.parameters(), *projector.parameters()], lr=2e-3, weight_decay=1e-5)
loader = DataLoader(TwoViews(x_train), batch_size=BATCH, shuffle=True, drop_last=True)

for epoch in range(EPOCHS):
    encoder.train()
    total = 0.0
    for v1, v2 in loader:
        z1, z2 = projector(encoder(v1)), projector(encoder(v2))
        loss = nt_xent(z1, z2, TEMPERATURE)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(f"pretrain epoch {epoch}: loss {total / len(loader):.3f}")

# linear probe: 60 labels a class are enough
model = nn.Sequential(encoder, nn.Linear(64, 6))
for p in encoder.parameters():
    p.requires_grad = False
probe_params = [p for p in model.parameters() if p.requires_grad]
probe_opt = torch.optim.Adam(probe_params, lr=1e-2)
labelled = TensorDataset(x_train[:360], y_train[:360])

for epoch in range(PROBE_EPOCHS):
    model.eval()  # the encoder's statistics stay as they are
    for x, y in DataLoader(labelled, batch_size=60, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        probe_opt.zero_grad()
        loss.backward()
        probe_opt.step()
with torch.no_grad():
    acc = (model(x_test).argmax(1) == y_test).float().mean().item()
print(f"linear probe: test accuracy {acc:.3f}")
