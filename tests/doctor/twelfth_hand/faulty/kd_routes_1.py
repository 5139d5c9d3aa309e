"""Knowledge distillation: a wide teacher of route types teaches a slim student that sees few labels."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    centres = 1.6 * torch.randn(6, 10, generator=torch.Generator().manual_seed(99))
    y = torch.randint(6, (n,), generator=g)
    x = centres[y] + torch.randn(n, 10, generator=g)
    x[:, :3] = x[:, :3].sin() * 2
    return TensorDataset(x, y)


def mlp(width, depth, dropout=0.0):
    layers, d = [], 10
    for _ in range(depth):
        layers += [nn.Linear(d, width), nn.ReLU(), nn.Dropout(dropout)]
        d = width
    return nn.Sequential(*layers, nn.Linear(d, 6))


def accuracy(net, loader):
    was_training = net.training
    net.eval()
    correct = total = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (net(x).argmax(dim=1) == y).sum().item()
            total += y.numel()
    net.train(was_training)
    return correct / total


def train_teacher(teacher, loader, epochs=8):
    opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    teacher.train()
    for _ in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(teacher(x), y).backward()
            opt.step()


def distillation_loss(student_logits, teacher_logits, labels, T=3.0, alpha=0.7):
    soft = F.kl_div(
        F.log_softmax(student_logits / T, dim=1),
        F.softmax(teacher_logits / T, dim=1),
        reduction="batchmean",
    ) * (T * T)
    hard = F.cross_entropy(student_logits, labels)
    return alpha * soft + (1 - alpha) * hard


def train_student(student, teacher, loader, test_loader, epochs=8):
    optimizer = torch.optim.Adam(student.parameters(), lr=4e-3)
    for epoch in range(epochs):
        student.train()
        running = 0.0
        for x, y in loader:
            with torch.no_grad():
                teacher_logits = teacher(x)
            student_logits = student(x)
            loss = distillation_loss(student_logits, teacher_logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item() * len(x)
        print(f"  student epoch {epoch}: loss {running / len(loader.dataset):.4f} test acc {accuracy(student, test_loader):.3f}")


def main():
    torch.manual_seed(6)
    big, small, test = make_data(3000, 1), make_data(400, 2), make_data(1000, 3)
    test_loader = DataLoader(test, batch_size=250)
    teacher, student = mlp(128, 2, dropout=0.2), mlp(16, 1)
    train_teacher(teacher, DataLoader(big, batch_size=64, shuffle=True))
    print(f"teacher test acc {accuracy(teacher, test_loader):.3f}")
    train_student(student, teacher, DataLoader(small, batch_size=20, shuffle=True), test_loader)
    print(f"teacher afterwards {accuracy(teacher, test_loader):.3f}, student {accuracy(student, test_loader):.3f}")


if __name__ == "__main__":
    main()
