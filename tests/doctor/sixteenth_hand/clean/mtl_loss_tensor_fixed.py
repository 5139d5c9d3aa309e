"""Two regression tasks, weighted by learned uncertainties (Kendall et al.)."""
import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(3)


class MultiTaskModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.f1 = nn.Linear(5, 1, bias=False)
        self.f2 = nn.Linear(5, 1, bias=False)

    def forward(self, input):
        return [self.f1(input).squeeze(1), self.f2(input).squeeze(1)]


class MultiTaskLoss(nn.Module):
    def __init__(self, model, loss_fn, eta):
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.eta = nn.Parameter(torch.tensor(eta))

    def forward(self, input, targets):
        outputs = self.model(input)
        loss = [l(o, y) for l, o, y in zip(self.loss_fn, outputs, targets)]
        total_loss = torch.stack(loss) * torch.exp(-self.eta) + self.eta
        return loss, total_loss.sum()


w1, w2 = torch.randn(5), torch.randn(5)
x = torch.randn(600, 5)
y1 = x @ w1 + 0.1 * torch.randn(600)
y2 = x @ w2 + 0.5 * torch.randn(600)
x_train, x_val = x[:480], x[480:]

mtl = MultiTaskLoss(model=MultiTaskModel(), loss_fn=[nn.MSELoss(), nn.MSELoss()], eta=[0.0, 0.0])
optimizer = optim.Adam(mtl.parameters(), lr=0.02)

for epoch in range(12):
    mtl.train()
    order = torch.randperm(480)
    for i in range(0, 480, 32):
        idx = order[i:i + 32]
        optimizer.zero_grad()
        loss, total_loss = mtl(x_train[idx], [y1[:480][idx], y2[:480][idx]])
        total_loss.backward()
        optimizer.step()
    mtl.eval()
    with torch.no_grad():
        val_loss, val_total = mtl(x_val, [y1[480:], y2[480:]])
    print(f"epoch {epoch:2d}  val task1 {val_loss[0].item():.4f}  task2 {val_loss[1].item():.4f}  "
          f"total {val_total.item():.4f}  eta {mtl.eta.tolist()}")
