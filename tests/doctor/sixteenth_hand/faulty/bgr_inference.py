import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
rng = np.random.default_rng(0)
CLASSES = ["ripe", "unripe", "plum"]
COLOURS = np.array([[200, 60, 50], [70, 180, 60], [60, 50, 190]])
MEAN, STD = np.array([0.5, 0.5, 0.5]), np.array([0.25, 0.25, 0.25])


def write_images(folder, n):
    for i in range(n):
        cls = int(rng.integers(3))
        img = rng.normal(120, 30, (20, 20, 3))
        r, c = rng.integers(0, 10, 2)
        img[r:r + 10, c:c + 10] = COLOURS[cls] + rng.normal(0, 25, (10, 10, 3))
        Image.fromarray(img.clip(0, 255).astype(np.uint8)).save(folder / f"{i:04d}_{cls}.png")


def imread(path):
    """Stands in for cv2.imread."""
    return np.asarray(Image.open(path).convert("RGB"))[:, :, ::-1].copy()


def preprocess(rgb):
    x = (rgb.astype(np.float32) / 255 - MEAN) / STD
    return torch.from_numpy(x.transpose(2, 0, 1)).float()


class Fruits(Dataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.png"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        rgb = np.asarray(Image.open(self.files[i]).convert("RGB"))
        return preprocess(rgb), int(self.files[i].stem.split("_")[1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32, 3)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.relu(self.conv2(x)).amax(dim=(2, 3))
        return self.fc(x)


def infer(model, path):
    img = imread(path)
    with torch.no_grad():
        return model(preprocess(img).unsqueeze(0)).argmax(1).item()


with tempfile.TemporaryDirectory() as tmp:
    train_dir, val_dir, field_dir = (Path(tmp) / d for d in ("train", "val", "field"))
    for folder, n in ((train_dir, 400), (val_dir, 120), (field_dir, 120)):
        folder.mkdir()
        write_images(folder, n)
    train_loader = DataLoader(Fruits(train_dir), batch_size=32, shuffle=True)
    val_loader = DataLoader(Fruits(val_dir), batch_size=60)

    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
        print(f"epoch {epoch}: val accuracy {hits / 120:.3f}")

    model.eval()
    files = sorted(field_dir.glob("*.png"))
    ok = sum(infer(model, f) == int(f.stem.split("_")[1]) for f in files)
    print(f"inference script: {ok}/{len(files)} right, last: {CLASSES[infer(model, files[-1])]}")
