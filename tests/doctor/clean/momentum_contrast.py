"""MoCo: a key encoder that follows the query encoder by hand, both with batch norm in training mode."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(0)
encoder_q = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
encoder_k = copy.deepcopy(encoder_q)
for param in encoder_k.parameters():
    param.requires_grad = False
queue = F.normalize(torch.randn(8, 64), dim=0)
optimizer = torch.optim.SGD(encoder_q.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
loader = DataLoader(torch.randn(64, 12), batch_size=16, shuffle=True)
for _epoch in range(2):
    for images in loader:
        im_q, im_k = images + 0.1 * torch.randn_like(images), images + 0.1 * torch.randn_like(images)
        q = F.normalize(encoder_q(im_q), dim=1)
        with torch.no_grad():
            for param_q, param_k in zip(encoder_q.parameters(), encoder_k.parameters(), strict=True):
                param_k.data = param_k.data * 0.999 + param_q.data * 0.001
            k = F.normalize(encoder_k(im_k), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue], dim=1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(images), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
