import torch
from torch.nn import Sequential as Seq, Linear as Lin
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(0)

X = torch.rand((1280, 3))
y = (X[:, 0] + X[:, 1] + X[:, 2])
X_train, y_train = X[:1024], y[:1024]
X_val, y_val = X[1024:], y[1024:]

m = Seq(Lin(3, 1, bias=False))

optim = torch.optim.SGD(m.parameters(), lr=10e-2)
scheduler = ReduceLROnPlateau(optim, 'min', factor=0.5, patience=20)
mse = torch.nn.MSELoss()

for epoch in range(500):
    m.train()
    optim.zero_grad()
    out = m(X_train)
    loss = mse(out, y_train.unsqueeze(1))
    loss.backward()
    optim.step()

    m.eval()
    with torch.no_grad():
        val_error = (m(X_val).squeeze(1) - y_val).pow(2).mean()
    scheduler.step(val_error)
    if epoch % 100 == 99:
        print(epoch + 1, "train", loss.item(), "val", val_error.item(), "lr", optim.param_groups[0]["lr"])

print("weights:", [round(v, 4) for v in m[0].weight.flatten().tolist()])
