"""A small student learns seven-segment digits from a larger teacher."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

SEGMENTS = torch.tensor([
    [1, 1, 1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 1, 0], [1, 0, 1, 1, 1, 0, 1], [1, 0, 1, 1, 0, 1, 1], [0, 1, 1, 1, 0, 1, 0],
    [1, 1, 0, 1, 0, 1, 1], [1, 1, 0, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1, 1],
]).float()


def digits(count, generator):
    labels = torch.randint(0, 10, (count,), generator=generator)
    return SEGMENTS[labels].repeat_interleave(3, dim=1) + 0.8 * torch.randn(count, 21, generator=generator), labels


class Net(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(21, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)


class DistillationLoss(nn.Module):
    """Hinton's loss: soft targets at a temperature, and the labels."""

    def __init__(self, temperature=3.0, alpha=0.7):
        super().__init__()
        self.T, self.alpha = temperature, alpha
        self.kl = nn.KLDivLoss(reduction="batchmean")  # <- here

    def forward(self, student_logits, teacher_logits, labels):
        student = F.log_softmax(student_logits / self.T, dim=1)
        teacher = F.log_softmax(teacher_logits / self.T, dim=1)  # <- here
        soft = self.kl(student, teacher) * self.T**2  # <- here
        return self.alpha * soft + (1 - self.alpha) * F.cross_entropy(student_logits, labels)


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def train(model, loader, epochs, loss_of):
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            loss = loss_of(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(15)
    generator = torch.Generator().manual_seed(15)
    loader = DataLoader(TensorDataset(*digits(1000, generator)), batch_size=50, shuffle=True)
    x_test, y_test = digits(300, generator)
    teacher, student = Net(128, dropout=0.2), Net(12)
    train(teacher, loader, 5, lambda x, y: F.cross_entropy(teacher(x), y))
    print(f"teacher: {evaluate(teacher, x_test, y_test):.1%}")
    teacher.eval()
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    criterion = DistillationLoss()
    loss = train(student, loader, 5, lambda x, y: criterion(student(x), teacher(x), y))
    print(f"student: loss {loss:.3f}, {evaluate(student, x_test, y_test):.1%}")


if __name__ == "__main__":
    main()
