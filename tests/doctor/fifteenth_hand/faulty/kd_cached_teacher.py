"""Train a small CNN with the outputs of a bigger one."""
import logging
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(message)s")


class Params:
    learning_rate = 1e-3
    batch_size = 64
    num_epochs = 6
    alpha = 0.9
    temperature = 4
    num_classes = 8


def fetch_dataset(n, seed):
    rng = np.random.RandomState(seed)
    protos = np.random.RandomState(77).randn(8, 1, 12, 12)
    y = rng.randint(0, 8, n)
    shift = rng.randint(-2, 3, (n, 2))
    x = np.stack([np.roll(protos[c], s, axis=(1, 2)) for c, s in zip(y, shift)]) + 1.3 * rng.randn(n, 1, 12, 12)
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


class Net(nn.Module):
    def __init__(self, params, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * channels)
        self.fc = nn.Linear(2 * channels * 9, params.num_classes)

    def forward(self, s):
        s = F.relu(F.max_pool2d(self.bn1(self.conv1(s)), 2))
        s = F.relu(F.max_pool2d(self.bn2(self.conv2(s)), 2))
        return self.fc(s.flatten(1))


def loss_fn_kd(outputs, labels, teacher_outputs, params):
    alpha, T = params.alpha, params.temperature
    soft = F.kl_div(F.log_softmax(outputs / T, dim=1), F.softmax(teacher_outputs / T, dim=1), reduction="batchmean")
    return soft * (alpha * T * T) + F.cross_entropy(outputs, labels) * (1.0 - alpha)


def train_teacher(model, dataloader, epochs):
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        model.train()
        for x, y in dataloader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def evaluate(model, dataloader):
    model.eval()
    with torch.no_grad():
        return np.concatenate([(model(x).argmax(1) == y).float().numpy() for x, y in dataloader]).mean()


def fetch_teacher_outputs(teacher_model, dataloader):
    teacher_model.eval()
    with torch.no_grad():
        return [teacher_model(data_batch) for data_batch, _ in dataloader]


def train_kd(model, teacher_model, optimizer, dataloader, params):
    model.train()
    teacher_model.eval()
    total = 0.0
    for i, (train_batch, labels_batch) in enumerate(dataloader):
        output_teacher_batch = teacher_outputs[i]
        output_batch = model(train_batch)
        loss = loss_fn_kd(output_batch, labels_batch, output_teacher_batch, params)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(dataloader)


if __name__ == "__main__":
    torch.manual_seed(230)
    params = Params()
    train_dl = DataLoader(fetch_dataset(1600, 1), batch_size=params.batch_size, shuffle=True, drop_last=True)
    dev_dl = DataLoader(fetch_dataset(600, 2), batch_size=200)
    teacher = Net(params, 24)
    train_teacher(teacher, train_dl, 6)
    logging.info("teacher dev accuracy %.3f", evaluate(teacher, dev_dl))

    model = Net(params, 4)
    optimizer = optim.Adam(model.parameters(), lr=params.learning_rate)
    start = time.time()
    teacher_outputs = fetch_teacher_outputs(teacher, train_dl)
    logging.info("- Finished computing teacher outputs after %d secs..", round(time.time() - start))
    for epoch in range(params.num_epochs):
        loss = train_kd(model, teacher, optimizer, train_dl, params)
        logging.info("epoch %d loss %.3f dev accuracy %.3f", epoch + 1, loss, evaluate(model, dev_dl))
