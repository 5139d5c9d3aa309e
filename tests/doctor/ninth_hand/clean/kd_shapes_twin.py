import argparse
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(5)


def make_shapes(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 8, (n,), generator=g)
    centre = 2.2 * torch.randn(8, 20, generator=torch.Generator().manual_seed(77))
    x = centre[y] + 1.6 * torch.randn(n, 20, generator=g)
    return (x / 2.8).unsqueeze(1), y


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(640, 8)

    def forward(self, x):
        return self.fc(self.drop(self.conv(x).flatten(1)))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 5, padding=2)
        self.fc = nn.Linear(120, 8)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).flatten(1))


def kd_loss(student_logits, teacher_logits, labels, T=3.0, alpha=0.7):
    soft = F.kl_div(F.log_softmax(student_logits / T, dim=1), F.log_softmax(teacher_logits.detach() / T, dim=1), reduction="batchmean", log_target=True)
    return alpha * T * T * soft + (1 - alpha) * F.cross_entropy(student_logits, labels)


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def loop(x, y, epochs, step):
    for _ in range(epochs):
        for idx in torch.randperm(len(x)).split(64):
            step(x[idx], y[idx])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher-epochs", type=int, default=3)
    parser.add_argument("--student-epochs", type=int, default=5)
    opt = parser.parse_args()
    x, y = make_shapes(1280, 0)
    test_x, test_y = make_shapes(400, 1)

    teacher = Teacher()
    teacher_optim = torch.optim.Adam(teacher.parameters(), lr=1e-3)

    def teach(xb, yb):
        teacher.train()
        teacher_optim.zero_grad()
        F.cross_entropy(teacher(xb), yb).backward()
        teacher_optim.step()

    loop(x, y, opt.teacher_epochs, teach)
    print("teacher", accuracy(teacher, test_x, test_y))

    student = Student()
    student_optim = torch.optim.Adam(student.parameters(), lr=2e-3)
    teacher.eval()

    def distil(xb, yb):
        student.train()
        teacher_logits = teacher(xb)
        student_optim.zero_grad()
        loss = kd_loss(student(xb), teacher_logits, yb)
        loss.backward()
        student_optim.step()

    loop(x, y, opt.student_epochs, distil)
    print("student", accuracy(student, test_x, test_y))
