# MoCo on accelerometer-like gestures, followed by a linear classifier on the frozen encoder.
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
LENGTH, KINDS = 40, 5
DIM, QUEUE, MOMENTUM, TEMPERATURE = 24, 512, 0.99, 0.2


def gestures(n):
    kind = torch.randint(KINDS, (n,))
    t = torch.linspace(0, 1, LENGTH)
    f = 1.0 + kind.float()[:, None]
    amp = 0.7 + 0.6 * torch.rand(n, 1)
    phase = 6.283 * torch.rand(n, 1)
    a = amp * torch.sin(6.283 * f * t + phase)
    b = amp * torch.cos(6.283 * (KINDS + 1 - f) * t + phase)
    return torch.stack([a, b], 1) + 0.3 * torch.randn(n, 2, LENGTH), kind


def augment(x):
    n = len(x)
    x = x * (0.6 + 0.8 * torch.rand(n, 1, 1))
    shift = torch.randint(LENGTH, (n, 1))
    idx = (torch.arange(LENGTH) + shift) % LENGTH
    x = x.gather(2, idx[:, None].expand(-1, 2, -1))
    return x + 0.1 * torch.randn_like(x)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(2, 24, 5, padding=2, padding_mode="circular"), nn.ReLU(),
            nn.Conv1d(24, 32, 5, padding=2, padding_mode="circular"), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, dim))

    def features(self, x):
        return self.conv(x).mean(-1)

    def forward(self, x):
        return F.normalize(self.head(self.features(x)), dim=1)


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q = Encoder(DIM)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for p in self.encoder_k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(QUEUE, DIM), dim=1))
        self.ptr = 0

    @torch.no_grad()
    def update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data.mul_(MOMENTUM).add_(q.data, alpha=1 - MOMENTUM)

    @torch.no_grad()
    def enqueue(self, keys):
        self.queue[self.ptr:self.ptr + len(keys)] = keys
        self.ptr = (self.ptr + len(keys)) % QUEUE

    def forward(self, view_q, view_k):
        q = self.encoder_q(view_q)
        with torch.no_grad():
            self.update_key_encoder()
            k = self.encoder_k(view_k)
        l_pos = (q * k).sum(dim=1, keepdim=True)
        l_neg = q @ self.queue.clone().t()
        logits = torch.cat([l_pos, l_neg], dim=1) / TEMPERATURE
        labels = torch.ones(len(q), dtype=torch.long)
        loss = F.cross_entropy(logits, labels)
        self.enqueue(k)
        return loss, (logits.argmax(1) == labels).float().mean()


def pretrain(data, epochs=6, batch_size=64):
    moco = MoCo()
    opt = torch.optim.Adam(moco.encoder_q.parameters(), lr=1e-3, weight_decay=1e-4)
    steps = epochs * (len(data) // batch_size)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)
    for epoch in range(epochs):
        order = torch.randperm(len(data))
        loss_sum = acc_sum = 0.0
        n = len(data) // batch_size
        for i in range(n):
            x = data[order[i * batch_size:(i + 1) * batch_size]]
            loss, acc = moco(augment(x), augment(x))
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            loss_sum += loss.item()
            acc_sum += acc.item()
        print(f"pretrain {epoch}: loss {loss_sum / n:.3f} instance acc {acc_sum / n:.3f}")
    return moco.encoder_q


def linear_eval(encoder, train, test, steps=150):
    encoder.eval()
    with torch.no_grad():
        ftr, fte = encoder.features(train[0]), encoder.features(test[0])
    mu, sd = ftr.mean(0), ftr.std(0) + 1e-6
    ftr, fte = (ftr - mu) / sd, (fte - mu) / sd
    clf = nn.Linear(ftr.shape[1], KINDS)
    opt = torch.optim.Adam(clf.parameters(), lr=0.02)
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(clf(ftr), train[1]).backward()
        opt.step()
    return (clf(fte).argmax(1) == test[1]).float().mean().item()


unlabelled, _ = gestures(1024)
encoder = pretrain(unlabelled)
print(f"linear accuracy {linear_eval(encoder, gestures(100), gestures(500)):.3f}")
