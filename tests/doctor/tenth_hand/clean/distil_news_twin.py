"""A small student learns from a bigger teacher how news are sorted. The teacher scores each batch."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VOCAB, LENGTH, SECTIONS = 160, 18, 4
TEMPERATURE, ALPHA = 2.0, 0.7


class News(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.tokens, self.labels = [], []
        for _ in range(count):
            section = rng.randrange(SECTIONS)
            own = range(1 + 25 * section, 26 + 25 * section)
            words = [rng.choice(own) if rng.random() < 0.25 else rng.randrange(100, VOCAB) for _ in range(LENGTH)]
            self.tokens.append(torch.tensor(words))
            self.labels.append(section)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return index, self.tokens[index], self.labels[index]


class Classifier(nn.Module):
    def __init__(self, dim, hidden, dropout):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.conv = nn.Conv1d(dim, hidden, 3, padding=1)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, SECTIONS)

    def forward(self, tokens):
        h = F.relu(self.conv(self.embed(tokens).transpose(1, 2)))
        return self.out(self.drop(h.amax(-1)))


def evaluate(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for _, tokens, labels in loader:
            correct += (model(tokens).argmax(1) == labels).sum().item()
    return correct / len(loader.dataset)


def fit_teacher(train_loader, val_loader):
    teacher = Classifier(48, 96, 0.3)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(3):
        teacher.train()
        for _, tokens, labels in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(teacher(tokens), labels).backward()
            optimizer.step()
    print(f"teacher {evaluate(teacher, val_loader):.3f}")
    return teacher


def distillation_loss(student_logits, teacher_logits, labels):
    soft = F.kl_div(
        F.log_softmax(student_logits / TEMPERATURE, dim=1),
        F.log_softmax(teacher_logits / TEMPERATURE, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    hard = F.cross_entropy(student_logits, labels)
    return ALPHA * TEMPERATURE**2 * soft + (1 - ALPHA) * hard


def main():
    torch.manual_seed(50)
    train_set, val_set = News(640, 1), News(200, 2)
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=64)
    teacher = fit_teacher(train_loader, val_loader)
    teacher.eval()
    student = Classifier(16, 24, 0.1)
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
    for epoch in range(4):
        student.train()
        for _, tokens, labels in train_loader:
            with torch.no_grad():
                soft = teacher(tokens)
            loss = distillation_loss(student(tokens), soft, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f} student {evaluate(student, val_loader):.3f}")


if __name__ == "__main__":
    main()
