"""Small CNN on 20x20 grey pictures of ten garments, after the MNIST example of the PyTorch repository."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class Garments(Dataset):
    """Bytes on disk become floats only when a sample is asked for."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        prototypes = torch.rand(10, 1, 4, 4, generator=torch.Generator().manual_seed(7))
        prototypes = F.interpolate(prototypes, scale_factor=5, mode="bilinear")
        self.targets = torch.randint(0, 10, (count,), generator=gen)
        noise = 0.6 * torch.randn(count, 1, 20, 20, generator=gen)
        pictures = (0.7 * prototypes[self.targets] + 0.15 + noise).clamp(0, 1)
        self.data = (pictures * 255).to(torch.uint8)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = self.data[index].float().div(255)
        return (image - 0.5) / 0.3, int(self.targets[index])


class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(32 * 5 * 5, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        x = self.fc(x)
        return x


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}]\tLoss: {loss.item():.4f}")


def test(model, test_loader):
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data)
            test_loss += F.cross_entropy(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    test_loss /= len(test_loader.dataset)
    accuracy = correct / len(test_loader.dataset)
    print(f"Test set: average loss {test_loss:.4f}, accuracy {accuracy:.3f}")
    return accuracy


def main():
    parser = argparse.ArgumentParser(description="Garments")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    train_loader = DataLoader(Garments(960, seed=10), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(Garments(307, seed=11), batch_size=args.test_batch_size)
    model = Net()
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
