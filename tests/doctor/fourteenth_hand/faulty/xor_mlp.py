import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(1)

input_dim, hidden_dim, output_dim = 2, 8, 1
learning_rate = 0.05
num_epochs = 60


def xor_points(n):
    bits = torch.randint(0, 2, (n, 2))
    label = (bits[:, 0] ^ bits[:, 1]).float().unsqueeze(1)
    return (2.0 * bits - 1.0) + 0.25 * torch.randn(n, 2), label


x_train, y_train = xor_points(400)
x_test, y_test = xor_points(200)

model = nn.Sequential(
    nn.Linear(input_dim, hidden_dim),
    nn.Linear(hidden_dim, output_dim),
    nn.Sigmoid(),
)
criterion = nn.BCELoss()
optimizer = optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)

for epoch in range(num_epochs):
    model.train()
    order = torch.randperm(len(x_train))
    epoch_loss = 0.0
    for start in range(0, len(x_train), 40):
        sel = order[start:start + 40]
        optimizer.zero_grad()
        out = model(x_train[sel])
        loss = criterion(out, y_train[sel])
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(sel)
    if epoch % 15 == 14:
        model.eval()
        with torch.no_grad():
            acc = ((model(x_test) > 0.5).float() == y_test).float().mean().item()
        print("Epoch {} loss {:.4f} test accuracy {:.3f}".format(epoch, epoch_loss / len(x_train), acc))

with torch.no_grad():
    corners = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    print("corners:", [round(v, 3) for v in model(corners).flatten().tolist()])
