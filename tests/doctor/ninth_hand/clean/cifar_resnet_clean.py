"""Train a small residual network on CIFAR-like pictures.

    python main.py --lr 0.05 --epochs 3
"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("--batch-size", default=64, type=int)
args = parser.parse_args()
torch.manual_seed(1)

MEAN = torch.tensor([0.49, 0.48, 0.45]).view(3, 1, 1)
STD = torch.tensor([0.25, 0.24, 0.26]).view(3, 1, 1)


class Pictures(Dataset):
    def __init__(self, n, seed, train):
        g = torch.Generator().manual_seed(seed)
        prototypes = torch.rand(10, 3, 16, 16, generator=torch.Generator().manual_seed(7))
        self.y = torch.randint(0, 10, (n,), generator=g)
        noise = torch.rand(n, 3, 16, 16, generator=g)
        self.x = (0.55 * prototypes[self.y] + 0.45 * noise).mul(255).byte()
        self.train = train

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i].float() / 255
        x = (x - MEAN) / STD
        if self.train:
            x = F.pad(x, (2, 2, 2, 2))
            top, left = torch.randint(0, 5, (2,)).tolist()
            x = x[:, top : top + 16, left : left + 16]
        return x, self.y[i]


class BasicBlock(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 16, 2), BasicBlock(16, 32, 2))
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.fc(x.mean((2, 3)))


trainset, testset = Pictures(1500, 0, True), Pictures(400, 1, False)
trainloader = DataLoader(trainset, args.batch_size, shuffle=True)
testloader = DataLoader(testset, 100)
net = ResNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2], gamma=0.1)


def train(epoch):
    net.train()
    train_loss, correct, total = 0.0, 0, 0
    for inputs, targets in trainloader:
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        train_loss += loss.item() * len(targets)
        correct += outputs.argmax(1).eq(targets).sum().item()
        total += len(targets)
    print(f"epoch {epoch} loss {train_loss / total:.3f} acc {correct / total:.3f}")


def test():
    net.eval()
    correct = 0
    with torch.no_grad():
        for inputs, targets in testloader:
            correct += net(inputs).argmax(1).eq(targets).sum().item()
    print(f"test acc {correct / len(testset):.3f}")


for epoch in range(args.epochs):
    train(epoch)
    test()
    scheduler.step()
