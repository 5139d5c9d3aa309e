"""Momentum contrast on drawn textures: a queue of keys, an encoder of queries and one of keys."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, x):
        return self.fc(self.conv(x))


class MoCo(nn.Module):
    def __init__(self, dim=32, K=512, m=0.98, T=0.2):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = Encoder(dim)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for param_k in self.encoder_k.parameters():
            param_k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        """Momentum update of the key encoder"""
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + len(keys)] = keys.T
        self.queue_ptr[0] = (ptr + len(keys)) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels


def textures(count, size=16):
    grid = torch.arange(size).float()
    angle, wave = math.pi * torch.rand(count, 1, 1), 0.5 + torch.rand(count, 1, 1)
    return torch.sin(wave * (torch.cos(angle) * grid[None, :, None] + torch.sin(angle) * grid[None, None, :])).unsqueeze(1)


def augment(images):
    shift = torch.randint(0, 6, (2,)).tolist()
    images = torch.roll(images, shift, dims=(2, 3)) * (0.7 + 0.6 * torch.rand(len(images), 1, 1, 1))
    return images + 0.3 * torch.randn_like(images)


def main():
    torch.manual_seed(10)
    images = textures(1024)
    model = MoCo()
    optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.06, momentum=0.9, weight_decay=1e-4)
    for epoch in range(4):
        right = 0
        for rows in torch.randperm(len(images)).split(64):
            logits, labels = model(augment(images[rows]), augment(images[rows]))
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (logits.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, the own key is nearest in {right / len(images):.1%}")


if __name__ == "__main__":
    main()
