import os
import tempfile
from collections import OrderedDict

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class RunnerState:
    def __init__(self):
        self.epoch = 0
        self.loader_name = None
        self.epoch_metrics = {}


class SupervisedRunner:
    """Goes through the loaders of each epoch; trains on those whose names start with 'train'."""

    def __init__(self, model, criterion, optimizer, scheduler):
        self.model, self.criterion = model, criterion
        self.optimizer, self.scheduler = optimizer, scheduler
        self.state = RunnerState()

    def _handle_batch(self, batch, is_train):
        features, targets = batch
        with torch.set_grad_enabled(is_train):
            logits = self.model(features)
            loss = self.criterion(logits, targets)
        if is_train:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        hits = (logits.argmax(1) == targets).sum().item()
        return loss.item() * len(targets), hits, len(targets)

    def _run_loader(self, loader, is_train):
        self.model.train(is_train)
        sums = np.zeros(3)
        for batch in loader:
            sums += self._handle_batch(batch, is_train)
        return {"loss": sums[0] / sums[2], "accuracy01": sums[1] / sums[2]}

    def _run_epoch(self, loaders):
        for loader_name, loader in loaders.items():
            self.state.loader_name = loader_name
            is_train = loader_name.startswith("train")
            if isinstance(loader.sampler, DistributedSampler) and is_train:
                loader.sampler.set_epoch(self.state.epoch)
            self.state.epoch_metrics[loader_name] = self._run_loader(loader, is_train)
        self.scheduler.step()

    def train(self, loaders, num_epochs):
        for self.state.epoch in range(num_epochs):
            self._run_epoch(loaders)
            for name, metrics in self.state.epoch_metrics.items():
                print(f"{self.state.epoch + 1}/{num_epochs} * Epoch ({name}): "
                      + " | ".join(f"{k}={v:.4f}" for k, v in metrics.items()))


def spirals(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    r = rng.uniform(0.1, 1.0, n)
    angle = 4.0 * r + y * 2 * np.pi / 3 + rng.normal(0, 0.15, n)
    x = np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)
    return torch.tensor(x, dtype=torch.float32), torch.from_numpy(y)


def get_loaders(batch_size=16):
    x_train, y_train = spirals(900, seed=1)
    x_valid, y_valid = spirals(300, seed=2)
    mean, std = x_train.mean(0), x_train.std(0)
    trainset = TensorDataset((x_train - mean) / std, y_train)
    validset = TensorDataset((x_valid - mean) / std, y_valid)
    loaders = OrderedDict()
    loaders["train"] = DataLoader(trainset, batch_size=batch_size, sampler=DistributedSampler(trainset, shuffle=True))
    loaders["valid"] = DataLoader(validset, batch_size=100, shuffle=False)
    return loaders


def main():
    torch.manual_seed(42)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(tempfile.mkdtemp(), "sync"),
                            rank=0, world_size=1)
    num_epochs = 12
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8, 10], gamma=0.3)
    runner = SupervisedRunner(model, nn.CrossEntropyLoss(), optimizer, scheduler)
    runner.train(get_loaders(), num_epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
