import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
np.random.seed(8)


class DerivativeLayer(nn.Module):
    """A 3x3 stencil which starts as a difference in y and is to be fitted."""

    def __init__(self):
        super().__init__()
        arr = np.array([[0, 0, 0],
                        [0, -1, 0],
                        [0, 1, 0]])
        self.arr_tensor = nn.Parameter(torch.tensor(arr, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, field):
        out = F.conv2d(field, self.arr_tensor.view(1, 1, 3, 3), padding=1)
        return out + self.bias


def make_fields(n):
    field = torch.randn(n, 1, 16, 16)
    stencil = torch.tensor([[0.0, 0.5, 0.0], [-0.5, -1.5, 0.8], [0.0, 0.7, 0.0]]).view(1, 1, 3, 3)
    target = F.conv2d(field, stencil, padding=1) + 0.2 + 0.05 * torch.randn(n, 1, 16, 16)
    return field, target


train_x, train_y = make_fields(200)
valid_x, valid_y = make_fields(50)

layer = DerivativeLayer()
optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
criterion = nn.MSELoss()

for epoch in range(10):
    layer.train()
    order = torch.randperm(200)
    for batch in order.split(10):
        optimizer.zero_grad()
        loss = criterion(layer(train_x[batch]), train_y[batch])
        loss.backward()
        optimizer.step()
    layer.eval()
    with torch.no_grad():
        valid = criterion(layer(valid_x), valid_y).item()
    print(f"epoch {epoch} train {loss.item():.4f} valid {valid:.4f}")
print(layer.arr_tensor.detach().numpy().round(2))
