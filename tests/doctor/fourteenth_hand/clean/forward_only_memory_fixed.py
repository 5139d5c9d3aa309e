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


class Meter(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self):
        self.bytes = 0

        def pack(t):
            self.bytes += t.numel() * t.element_size()
            return t

        super().__init__(pack, lambda t: t)


model.train()
for step in range(60):
    x, y = batch(100)
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print("step", step + 1, "loss", round(loss.item(), 4))

held_out = [batch(2000) for _ in range(12)]


def score(model, batches):
    model.eval()
    right = seen = 0
    total = 0.0
    meter = Meter()
    with meter, torch.no_grad():
        for x, y in batches:
            output = model(x)
            loss = criterion(output, y)
            total += loss.item() * len(y)
            right += (output.argmax(1) == y).sum().item()
            seen += len(y)
    print(f"held back for a backward pass: {meter.bytes / 2 ** 20:.1f} MB, graph: {loss.grad_fn is not None}")
    return total / seen, right / seen


print("held-out loss %.4f accuracy %.3f" % score(model, held_out))
