import contextlib
from copy import deepcopy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)


def make_data(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    centers = np.random.default_rng(99).normal(0, 1.0, (4, 20))
    x = centers[y] + rng.normal(0, 0.8, (n, 20))
    return torch.from_numpy(x).float(), torch.from_numpy(y).long()


def weak(x):
    return x + 0.05 * torch.randn_like(x)


def strong(x):
    return (x + 0.2 * torch.randn_like(x)) * (torch.rand_like(x) > 0.15)


class Net(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.LeakyReLU(0.1), nn.Linear(64, 64), nn.LeakyReLU(0.1))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(self.body(x))


class EMA:
    def __init__(self, model, decay):
        self.model = deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.model.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p, alpha=1 - self.decay)


class FixMatch:
    def __init__(self, args, lb_loader, ulb_loader, eval_loader):
        self.args = args
        self.loader_dict = {"train_lb": lb_loader, "train_ulb": ulb_loader, "eval": eval_loader}
        self.model = Net()
        self.ema = EMA(self.model, 0.98)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.03, momentum=0.9, nesterov=True,
                                         weight_decay=5e-4)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, args["num_train_iter"])

    def train(self):
        self.model.train()
        scaler = torch.amp.GradScaler("cpu", enabled=self.args["amp"])
        amp_cm = torch.autocast("cpu", dtype=torch.bfloat16) if self.args["amp"] else contextlib.nullcontext()
        it = 0
        while it < self.args["num_train_iter"]:
            for (x_lb, y_lb), (x_ulb,) in zip(self.loader_dict["train_lb"], self.loader_dict["train_ulb"]):
                if it >= self.args["num_train_iter"]:
                    break
                num_lb, num_ulb = len(x_lb), len(x_ulb)
                inputs = torch.cat((weak(x_lb), weak(x_ulb), strong(x_ulb)))
                with amp_cm:
                    logits = self.model(inputs)
                    logits_lb = logits[:num_lb]
                    logits_w, logits_s = logits[num_lb:num_lb + num_ulb], logits[num_lb + num_ulb:]
                    sup_loss = F.cross_entropy(logits_lb, y_lb)
                    prob, pseudo = torch.softmax(logits_w.detach(), dim=-1).max(dim=-1)
                    mask = prob.ge(self.args["p_cutoff"]).float()
                    unsup_loss = (F.cross_entropy(logits_s, pseudo, reduction="none") * mask).mean()
                    total_loss = sup_loss + self.args["lambda_u"] * unsup_loss
                if self.args["amp"]:
                    scaler.scale(total_loss).backward()
                    if self.args["clip"] > 0:
                        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args["clip"])
                    scaler.step(self.optimizer)
                    scaler.update()
                else:
                    total_loss.backward()
                    if self.args["clip"] > 0:
                        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args["clip"])
                    self.optimizer.step()
                self.scheduler.step()
                self.ema.update(self.model)
                self.optimizer.zero_grad()
                it += 1
                if it % 100 == 0:
                    print(f"{it} iteration, sup {sup_loss.item():.4f}, unsup {unsup_loss.item():.4f}, "
                          f"util {mask.mean().item():.2f}, top-1-acc {self.evaluate():.4f}")

    @torch.no_grad()
    def evaluate(self):
        correct = total = 0
        for x, y in self.loader_dict["eval"]:
            correct += (self.ema.model(x).argmax(1) == y).sum().item()
            total += len(y)
        return correct / total


if __name__ == "__main__":
    x, y = make_data(2040, seed=1)
    mean, std = x[:2040].mean(0), x[:2040].std(0)
    x_eval, y_eval = make_data(500, seed=2)
    lb = TensorDataset((x[:40] - mean) / std, y[:40])
    ulb = TensorDataset((x[40:] - mean) / std)
    evl = TensorDataset((x_eval - mean) / std, y_eval)
    lb_sampler = torch.utils.data.RandomSampler(lb, replacement=True, num_samples=16 * 20)
    args = {"num_train_iter": 400, "p_cutoff": 0.9, "lambda_u": 1.0, "amp": True, "clip": 1.0}
    FixMatch(args, DataLoader(lb, batch_size=16, sampler=lb_sampler),
             DataLoader(ulb, batch_size=100, shuffle=True, drop_last=True),
             DataLoader(evl, batch_size=250)).train()
