"""A small net learns textures from a larger one: distillation with temperature (functions, after Hinton's recipe)."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--T", type=float, default=3.0)
    p.add_argument("--alpha", type=float, default=0.7)
    p.add_argument("--teacher-epochs", type=int, default=4)
    p.add_argument("--student-epochs", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=40)
    p.add_argument("--lr", type=float, default=3e-3)
    return p.parse_args()


def textures(count, seed):
    """Stripes of 6 directions and 2 widths under strong noise."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 12, (count,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    angle = (labels % 6).float().view(-1, 1, 1) * 3.14159 / 6
    width = torch.where(labels < 6, 0.8, 1.5).view(-1, 1, 1)
    shift = 6.28 * torch.rand(count, 1, 1, generator=g)
    waves = torch.sin(width * (xx * torch.cos(angle) + yy * torch.sin(angle)) + shift)
    return TensorDataset((waves + 0.9 * torch.randn(count, 16, 16, generator=g)).unsqueeze(1), labels)


class Teacher(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )
        self.drop = nn.Dropout(0.4)
        self.fc = nn.Linear(4 * width, 12)

    def forward(self, x):
        return self.fc(self.drop(self.features(x).flatten(1)))


class Student(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, width, 5, 2, 2), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.fc = nn.Linear(2 * width * 4, 12)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 2).flatten(1))


def loss_fn_kd(outputs, labels, teacher_outputs, args):
    soft = F.kl_div(
        F.softmax(outputs / args.T, dim=1), F.softmax(teacher_outputs / args.T, dim=1), reduction="batchmean"
    )
    return soft * (args.alpha * args.T * args.T) + F.cross_entropy(outputs, labels) * (1.0 - args.alpha)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def train_teacher(model, loader, args):
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.teacher_epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def train_kd(model, teacher_model, train_loader, valid_loader, args):
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.student_epochs):
        model.train()
        teacher_model.eval()
        total = 0.0
        for x, y in train_loader:
            output_batch = model(x)
            with torch.no_grad():
                output_teacher_batch = teacher_model(x)
            loss = loss_fn_kd(output_batch, y, output_teacher_batch, args)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(train_loader):.4f} student {evaluate(model, valid_loader):.3f}")


def main():
    args = parse()
    torch.manual_seed(19)
    train_loader = DataLoader(textures(1000, 1), args.batch_size, shuffle=True)
    valid_loader = DataLoader(textures(300, 2), 100)
    teacher, student = Teacher(), Student()
    train_teacher(teacher, train_loader, args)
    print(f"teacher {evaluate(teacher, valid_loader):.3f}")
    train_kd(student, teacher, train_loader, valid_loader, args)
    print(f"teacher afterwards {evaluate(teacher, valid_loader):.3f}")


if __name__ == "__main__":
    main()
