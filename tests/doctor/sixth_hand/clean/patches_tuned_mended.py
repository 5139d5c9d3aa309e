"""A vision transformer that was pretrained by filling in patches is tuned to tell classes."""
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, width=48, depth=2, patches=16, inputs=48):
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.position = nn.Parameter(torch.randn(1, patches, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, patches):
        return self.blocks(self.embed(patches) + self.position)


class Filler(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = nn.Linear(48, 48)

    def forward(self, patches):
        keep = (torch.rand(patches.shape[:2]) > 0.5).unsqueeze(-1).float()
        return ((self.decoder(self.encoder(patches * keep)) - patches) ** 2 * (1 - keep)).sum() / (1 - keep).sum() / 48


class Classifier(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(48, classes)

    def forward(self, patches):
        return self.head(self.encoder(patches).mean(1))


def scenes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    textures = torch.randn(4, 16, 48, generator=torch.Generator().manual_seed(5))
    labels = torch.randint(0, 4, (count,), generator=generator)
    return textures[labels] * 0.5 + torch.randn(count, 16, 48, generator=generator), labels


def pretrain(path):
    model = Filler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    patches, _ = scenes(512, 1)
    for epoch in range(3):
        for (batch,) in DataLoader(TensorDataset(patches), 64, shuffle=True):
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save({"model": model.state_dict(), "epoch": epoch}, path)
    print(f"pretrained, loss {loss.item():.3f}")


def tune(path):
    model = Classifier()
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint["model"], strict=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    train = DataLoader(TensorDataset(*scenes(128, 2)), 16, shuffle=True)
    test_patches, test_labels = scenes(128, 3)
    for epoch in range(3):
        model.train()
        for patches, labels in train:
            loss = criterion(model(patches), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_patches).argmax(1) == test_labels).float().mean().item()
        print(f"epoch {epoch}: accuracy {accuracy:.3f}")


if __name__ == "__main__":
    torch.manual_seed(2)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pretrained.pth")
        pretrain(path)
        tune(path)
