"""Neural style transfer: the image is optimized, the network only looks."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
cnn = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)).eval()
content = torch.rand(1, 3, 16, 16)
target = cnn(content).detach()
input_img = torch.rand(1, 3, 16, 16)
input_img.requires_grad_(True)
cnn.eval()
cnn.requires_grad_(False)
optimizer = torch.optim.LBFGS([input_img])
run = [0]
while run[0] <= 30:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(cnn(input_img), target)
        loss.backward()
        run[0] += 1
        return loss

    optimizer.step(closure)
