"""MAML on sine waves with torch.func.functional_call."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class SineTasks:
    """Waves with amplitudes and phases of their own; K points to adapt on, K to be judged on."""

    def __init__(self, k, seed):
        self.k = k
        self.g = torch.Generator().manual_seed(seed)

    def _rand(self, n, low, high):
        return low + (high - low) * torch.rand(n, generator=self.g)

    def batch(self, n):
        amplitude, phase = self._rand((n, 1, 1), 0.5, 4.0), self._rand((n, 1, 1), 0.0, 3.14)
        x = self._rand((n, 2 * self.k, 1), -5.0, 5.0)
        y = amplitude * torch.sin(x + phase)
        return x[:, : self.k], y[:, : self.k], x[:, self.k :], y[:, self.k :]


def make_net():
    return nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))


class Meta:
    def __init__(self, args):
        self.net = make_net()
        self.inner_lr, self.inner_steps = args.inner_lr, args.inner_steps
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=args.meta_lr)

    def adapt(self, x, y, create_graph):
        fast = dict(self.net.named_parameters())
        for _ in range(self.inner_steps):
            loss = F.mse_loss(functional_call(self.net, fast, (x,)), y)
            grads = torch.autograd.grad(loss, list(fast.values()))
            fast = {name: w - self.inner_lr * g for (name, w), g in zip(fast.items(), grads)}
        return fast

    def query_loss(self, task, create_graph):
        xs, ys, xq, yq = task
        fast = self.adapt(xs, ys, create_graph)
        return F.mse_loss(functional_call(self.net, fast, (xq,)), yq)

    def train_step(self, tasks):
        losses = [self.query_loss(task, create_graph=True) for task in zip(*tasks)]
        meta_loss = torch.stack(losses).mean()
        self.optimizer.zero_grad()
        meta_loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.optimizer.step()
        return meta_loss.item()

    def evaluate(self, tasks):
        losses = [self.query_loss(task, create_graph=False) for task in zip(*tasks)]
        meta_loss = torch.stack(losses).mean()
        return meta_loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--meta-batch", type=int, default=4)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--inner-lr", type=float, default=0.02)
    parser.add_argument("--inner-steps", type=int, default=1)
    parser.add_argument("--meta-lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.manual_seed(21)
    meta = Meta(args)
    train_tasks, test_tasks = SineTasks(args.shots, 1), SineTasks(args.shots, 2)
    best, best_state = float("inf"), None
    running = 0.0
    for it in range(1, args.iterations + 1):
        running += meta.train_step(train_tasks.batch(args.meta_batch))
        if it % 80 == 0:
            score = meta.evaluate(test_tasks.batch(50))
            if score < best:
                best, best_state = score, copy.deepcopy(meta.net.state_dict())
            print(f"iteration {it}  meta-train {running / 80:.3f}  new tasks after adaptation {score:.3f}")
            running = 0.0
    torch.save(best_state, "maml_sines.pt")


if __name__ == "__main__":
    main()
