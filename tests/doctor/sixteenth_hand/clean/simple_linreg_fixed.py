"""Fit y = weights . x on four points; the answer should be (0, 1)."""
import torch

torch.manual_seed(1)

# Training data x (first column for the intercept) and true labels y
x = torch.tensor([[1, 2.0],
                  [1, 3.0],
                  [1, 7.0],
                  [1, 9.0]])
y = torch.tensor([2.0, 3.0, 7.0, 9.0])

weights = torch.randn(2, 1, requires_grad=True)

optimizer = torch.optim.Adam([weights], lr=0.01)

# Actual training
loss_history = []
weight_history = []
for i in range(4000):
    out = x.mm(weights).view(-1)
    loss = torch.mean((out - y) ** 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_history.append(loss.item())
    weight_history.append(weights.detach().view(-1).tolist())
    if (i + 1) % 1000 == 0:
        print(f"step {i + 1} loss {loss_history[-1]:.6f}")

print("first weights:", weight_history[0])
print("last weights:", weight_history[-1])
with torch.no_grad():
    print("prediction for 5.0:", torch.tensor([[1, 5.0]]).mm(weights).item())
