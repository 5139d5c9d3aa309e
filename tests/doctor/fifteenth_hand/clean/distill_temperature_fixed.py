import argparse
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

DistillationLossWeights = namedtuple("DistillationLossWeights", ["distill", "student", "teacher"])


class KnowledgeDistillationPolicy:
    def __init__(self, student_model, teacher_model, temperature, loss_weights):
        self.student, self.teacher = student_model, teacher_model
        self.temperature = temperature
        self.loss_wts = loss_weights

    def forward(self, inputs):
        with torch.no_grad():
            self.last_teacher_logits = self.teacher(inputs)
        self.last_students_logits = self.student(inputs)
        return self.last_students_logits

    def before_backward_pass(self, loss):
        soft_log_probs = F.log_softmax(self.last_students_logits / self.temperature, dim=1)
        soft_targets = F.softmax(self.last_teacher_logits / self.temperature, dim=1)
        distillation_loss = F.kl_div(soft_log_probs, soft_targets, reduction="batchmean") * self.temperature ** 2
        overall_loss = self.loss_wts.student * loss + self.loss_wts.distill * distillation_loss
        return overall_loss, distillation_loss


def get_data(n, seed, teacher_map):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=g)
    logits = torch.tanh(x @ teacher_map[0]) @ teacher_map[1]
    y = torch.distributions.Categorical(logits=logits).logits.argmax(1)
    flip = torch.rand(n, generator=g) < 0.25
    y[flip] = torch.randint(0, 6, (int(flip.sum()),), generator=g)
    return TensorDataset(x, y)


def mlp(width):
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 6))


def validate(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, target in loader:
            correct += (model(inputs).argmax(1) == target).sum().item()
            total += target.size(0)
    return 100.0 * correct / total


def fit_teacher(model, loader, epochs=4):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        model.train()
        for inputs, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), target).backward()
            optimizer.step()
    return model.eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kd-temperature", dest="temp", type=float, default=5.0)
    parser.add_argument("--kd-distill-wt", dest="dw", type=float, default=0.7)
    parser.add_argument("--kd-student-wt", dest="sw", type=float, default=0.3)
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(3)
    teacher_map = (torch.randn(20, 16) * 0.5, torch.randn(16, 6) * 2)
    big_loader = DataLoader(get_data(12000, 0, teacher_map), batch_size=64, shuffle=True)
    train_loader = DataLoader(get_data(1000, 1, teacher_map), batch_size=50, shuffle=True)
    val_loader = DataLoader(get_data(2000, 2, teacher_map), batch_size=250)
    teacher = fit_teacher(mlp(128), big_loader)
    print("teacher top1 %.2f" % validate(teacher, val_loader))

    student = mlp(24)
    policy = KnowledgeDistillationPolicy(student, teacher, args.temp, DistillationLossWeights(args.dw, args.sw, 0.0))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        student.train()
        for inputs, target in train_loader:
            output = policy.forward(inputs)
            loss, kd = policy.before_backward_pass(F.cross_entropy(output, target))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"==> epoch {epoch} overall {loss.item():.3f} distillation {kd.item():.4f} top1 {validate(student, val_loader):.2f}")


if __name__ == "__main__":
    main()
