"""Leaf diseases in two stages: everything is trained for two epochs, then the backbone rests."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

STAGES = [{"epochs": 2, "rest": False}, {"epochs": 3, "rest": True}]


def leaves(count, seed, classes=4):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    grid = torch.linspace(0, 3.14 * 4, 20)
    images = torch.randn(count, 3, 20, 20, generator=generator) * 0.5
    for number, label in enumerate(labels.tolist()):
        images[number, label % 3] += torch.sin(grid * (1 + label)).unsqueeze(0)
    return TensorDataset(images, labels)


def backbone(width):
    block = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(block(3, width), block(width, 2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Classifier(nn.Module):
    def __init__(self, width=16, classes=4):
        super().__init__()
        self.backbone = backbone(width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        return self.head(self.backbone(x))

    def rest(self):
        for parameter in self.backbone.parameters():
            parameter.requires_grad = False  # <- here


class Experiment:
    def __init__(self, train, test):
        self.train, self.test = train, test
        self.model = Classifier()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-3)
        self.criterion = nn.CrossEntropyLoss()

    def epoch(self):
        self.model.train()
        for images, labels in self.train:
            self.optimizer.zero_grad(set_to_none=False)  # <- here
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()  # <- here
        return loss.item()

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        hits = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.test)
        return hits / len(self.test.dataset)

    def run(self):
        for stage in STAGES:
            if stage["rest"]:
                self.model.rest()
            for _ in range(stage["epochs"]):
                loss = self.epoch()
                norm = sum(p.norm() ** 2 for p in self.model.backbone.parameters()).sqrt().item()
                print(f"loss {loss:.3f}, accuracy {self.accuracy():.3f}, backbone {norm:.4f}")


if __name__ == "__main__":
    torch.manual_seed(4)
    Experiment(DataLoader(leaves(320, 1), 32, shuffle=True), DataLoader(leaves(96, 2), 48)).run()
