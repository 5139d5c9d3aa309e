import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
np.random.seed(5)

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def photo(kind):
    """A uint8 24x24 RGB image of one of three textures."""
    yy, xx = np.mgrid[:24, :24]
    wave = [np.sin(xx * 0.9), np.sin(yy * 0.9), np.sin((xx + yy) * 0.9)][kind]
    phase = np.random.uniform(0.6, 1.0)
    img = 118 + 45 * phase * wave[..., None] + np.random.normal(0, 45, (24, 24, 3))
    return img.clip(0, 255).astype(np.uint8)


def to_tensor(img):
    return torch.from_numpy(img).permute(2, 0, 1).float() / 255


def normalize(x):
    return (x - MEAN) / STD


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 3))


kinds = np.random.randint(0, 3, 600)
images = [photo(k) for k in kinds]
x = torch.stack([normalize(to_tensor(img)) for img in images])
y = torch.from_numpy(kinds)
train_loader = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=32, shuffle=True, drop_last=True)
val_x, val_y = x[500:], y[500:]

model = build_model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss()
for epoch in range(4):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        acc = (model(val_x).argmax(1) == val_y).float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.3f} val acc {acc:.3f}")

with tempfile.TemporaryDirectory() as d:
    torch.save(model.state_dict(), os.path.join(d, "textures.pth"))

    # ---- the service ----
    served = build_model()
    served.load_state_dict(torch.load(os.path.join(d, "textures.pth")))
served.eval()

right = 0
requests = [(k, photo(k)) for k in np.random.randint(0, 3, 150)]
for kind, img in requests:
    input_tensor = normalize(to_tensor(img)).unsqueeze(0)
    with torch.no_grad():
        probs = torch.softmax(served(input_tensor), dim=1)
    right += int(probs.argmax(1).item() == kind)
print(f"service accuracy: {right / len(requests):.3f}, last confidence {probs.max().item():.2f}")
