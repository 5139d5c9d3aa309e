"""Shapes of galaxies: regularised strongly, since there are few of them."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def sky(count, seed):
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij")
    angle, radius = torch.atan2(y, x), torch.hypot(x, y)
    labels = torch.randint(0, 3, (count,), generator=generator)
    images = []
    for label in labels.tolist():
        turn = torch.rand((), generator=generator) * 6.28
        arms = torch.cos((label + 1) * (angle + turn) + 5 * radius)
        images.append(torch.exp(-2 * radius) * (1 + arms) + 0.15 * torch.randn(24, 24, generator=generator))
    images = torch.stack(images).unsqueeze(1)
    return TensorDataset((images - 0.4) / 0.4, labels)


def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))


class GalaxyNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.features = nn.Sequential(conv(1, width), nn.Dropout2d(0.2), conv(width, 2 * width), conv(2 * width, 4 * width))
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * width * 9, 3))

    def forward(self, x):
        return self.classifier(self.features(x))


class Engine:
    def __init__(self, model, lr=2e-3):
        self.model = model
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-2)

    def learn(self, loader):
        self.model.train()
        total = 0.0
        for images, labels in loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(labels)
        return total / len(loader.dataset)

    def validate(self, loader):
        self.model.eval()
        total, hits = 0.0, 0
        with torch.no_grad():
            for images, labels in loader:
                scores = self.model(images)
                total += self.criterion(scores, labels).item() * len(labels)
                hits += (scores.argmax(dim=1) == labels).sum().item()
        return total / len(loader.dataset), hits / len(loader.dataset)


def main():
    torch.manual_seed(19)
    train = DataLoader(sky(360, 1), batch_size=24, shuffle=True)
    valid = DataLoader(sky(120, 2), batch_size=40)
    engine = Engine(GalaxyNet())
    best = 0.0
    for epoch in range(4):
        loss = engine.learn(train)
        valid_loss, accuracy = engine.validate(valid)
        best = max(best, accuracy)
        print(f"epoch {epoch}: loss {loss:.3f}, validation {valid_loss:.3f}, accuracy {accuracy:.3f}, best {best:.3f}")


if __name__ == "__main__":
    main()
