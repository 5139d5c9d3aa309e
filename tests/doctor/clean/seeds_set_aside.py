"""Seeds in a training that harm nothing: another one in each epoch, and the same one for samples, with the state put back."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(96, 6)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True).tanh()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(5):
    torch.manual_seed(100 + epoch)
    for inputs, targets in loader:
        loss = nn.functional.l1_loss(model(inputs + 0.01 * torch.randn_like(inputs)), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(7)
            spread = model(torch.randn(32, 6)).std()
        state = torch.get_rng_state()
        torch.manual_seed(8)
        other = torch.randn(3)
        torch.set_rng_state(state)
    print(epoch, loss.item(), spread.item(), other.sum().item())
