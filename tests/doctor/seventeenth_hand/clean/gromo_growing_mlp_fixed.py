import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class RandomShift:
    def __init__(self, pad=4):
        self.pad = pad

    def __call__(self, img):
        dx, dy = torch.randint(-self.pad, self.pad + 1, (2,)).tolist()
        return torch.roll(img, shifts=(dx, dy), dims=(1, 2))


class RandomHorizontalFlip:
    def __call__(self, img):
        return img.flip(2) if torch.rand(1).item() < 0.5 else img


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, img):
        return (img - self.mean) / self.std


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img


class Shapes(Dataset):
    """16x16 grey images of five glyphs at random places."""

    glyphs = ["111/010/010", "101/010/101", "111/101/111", "010/111/010", "110/011/110"]

    def __init__(self, n, seed, transform=None):
        rng = np.random.default_rng(seed)
        self.targets = torch.from_numpy(rng.integers(0, 5, n))
        data = rng.normal(0.2, 0.15, (n, 1, 16, 16)).astype(np.float32)
        for i, c in enumerate(self.targets.tolist()):
            glyph = np.array([[int(v) for v in row] for row in self.glyphs[c].split("/")], dtype=np.float32)
            if rng.random() < 0.5:
                glyph = glyph[:, ::-1]
            glyph = np.kron(glyph, np.ones((2, 2), dtype=np.float32))
            y, x = rng.integers(0, 11, 2)
            data[i, 0, y:y + 6, x:x + 6] += glyph
        self.data = torch.from_numpy(data)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        img = self.data[i]
        if self.transform is not None:
            img = self.transform(img)
        return img, self.targets[i]


def get_dataset(n, seed, split_train_val=0.25):
    stats = Shapes(n, seed)
    indices = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    n_val = int(n * split_train_val)
    train_idx, val_idx = indices[n_val:], indices[:n_val]
    mean, std = stats.data[train_idx].mean(), stats.data[train_idx].std()
    train_transform = Compose([RandomHorizontalFlip(), RandomShift(4), Normalize(mean, std)])
    val_transform = Compose([Normalize(mean, std)])
    train_dataset = Subset(Shapes(n, seed, train_transform), train_idx)
    val_dataset = Subset(Shapes(n, seed, val_transform), val_idx)
    test_dataset = Shapes(400, seed + 1, val_transform)
    return train_dataset, val_dataset, test_dataset


class ConvBlockNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(256, hidden), nn.SELU(),
                                    nn.Linear(hidden, hidden), nn.SELU(), nn.Linear(hidden, 5))

    def forward(self, x):
        return self.layers(x)


def evaluate_model(model, loader, loss_fn):
    model.eval()
    loss, correct, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            loss += loss_fn(out, y).item() * len(y)
            correct += (out.argmax(1) == y).sum().item()
            n += len(y)
    return loss / n, correct / n


def main(args):
    torch.manual_seed(args.seed)
    train_set, val_set, test_set = get_dataset(800, args.seed)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=128)
    test_loader = DataLoader(test_set, batch_size=128)
    model = ConvBlockNet(args.hidden)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        if (epoch + 1) % 8 == 0:
            train_loss, train_acc = evaluate_model(model, train_loader, loss_fn)
            val_loss, val_acc = evaluate_model(model, val_loader, loss_fn)
            print(f"Epoch {epoch + 1}: train {train_loss:.3f}/{train_acc:.3f} val {val_loss:.3f}/{val_acc:.3f}")
    print("test loss {:.3f} accuracy {:.3f}".format(*evaluate_model(model, test_loader, loss_fn)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=32)
    main(parser.parse_args())
