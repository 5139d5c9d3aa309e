import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(42)

# Data
true_weight = torch.randn(10, 1)
inputs = torch.randn(320, 10)
targets = inputs @ true_weight + 0.3 + 0.05 * torch.randn(320, 1)
test_inputs = torch.randn(80, 10)
test_targets = test_inputs @ true_weight + 0.3


class LinearModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 1)

    def forward(self, x):
        return self.fc(x)


model = LinearModel()
optimizer = optim.SGD(model.parameters(), lr=0.01)
criterion = nn.MSELoss()

for epoch in range(30):
    permutation = torch.randperm(inputs.size(0))
    epoch_loss = 0.0
    for start in range(0, inputs.size(0), 32):
        batch = permutation[start:start + 32]
        outputs = model(inputs[batch])
        loss = criterion(outputs, targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(batch)
    print(f'Epoch {epoch}, Loss: {epoch_loss / inputs.size(0)}')

with torch.no_grad():
    test_loss = criterion(model(test_inputs), test_targets)
print(f'Test loss: {test_loss.item()}')
print('weight error:', (model.fc.weight.detach().t() - true_weight).abs().max().item())
