import torch
from torch import nn

torch.manual_seed(0)

TRUE_SLOPE, TRUE_STD = 1.5, 0.8


def draw(n):
    x = torch.rand(n, 1) * 4 - 2
    y = TRUE_SLOPE * x + 0.5 + TRUE_STD * torch.randn(n, 1)
    return x, y


x_train, y_train = draw(1200)
x_test, y_test = draw(400)


class LineNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.body(x)


net = LineNet()


def custom_loss(outputs, targets):
    prec = 1 / torch.var(outputs)
    not_mse = 0.5 * prec * torch.mean(torch.pow(outputs - targets, 2))
    return (not_mse - 0.5 * torch.log(prec)).squeeze()


optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
batch = 100

for epoch in range(60):
    net.train()
    order = torch.randperm(len(x_train))
    for start in range(0, len(x_train), batch):
        pick = order[start:start + batch]
        optimizer.zero_grad()
        loss = custom_loss(net(x_train[pick]), y_train[pick])
        loss.backward()
        optimizer.step()

    if (epoch + 1) % 20 == 0:
        net.eval()
        with torch.no_grad():
            out = net(x_test)
            test_mse = torch.mean((out - y_test) ** 2).item()
            std = torch.var(out).sqrt().item()
        print(f"epoch {epoch + 1}: test mse {test_mse:.3f}  fitted std {std:.3f}  (true std {TRUE_STD})")
