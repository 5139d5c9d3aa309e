import resource

import torch
import torch.nn as nn

torch.manual_seed(0)

proto = torch.randn(6, 128)


def batch(n):
    y = torch.randint(0, 6, (n,))
    return proto[y] + 3.0 * torch.randn(n, 128), y


layers = []
for i in range(6):
    layers += [nn.Linear(128 if i == 0 else 256, 256), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(256, 6))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


model.train()
for step in range(60):
    x, y = batch(100)
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print("step", step + 1, "loss", round(loss.item(), 4))


def score(model, n_batches, size=12000):
    model.eval()
    right = seen = 0
    total = 0.0
    before = peak_mb()
    for _ in range(n_batches):
        x, y = batch(size)
        output = model(x)
        loss = criterion(output, y)
        total += loss.item() * len(y)
        right += (output.argmax(1) == y).sum().item()
        seen += len(y)
    print(f"peak memory grew by {peak_mb() - before:.0f} MB over {n_batches} batches")
    return total / seen, right / seen


print("held-out loss %.4f accuracy %.3f" % score(model, 6))
