import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(42)

class_names = ["shirt", "boot", "bag", "dress", "coat"]
templates = torch.rand(len(class_names), 1, 14, 14)


def make_split(n):
    y = torch.randint(0, len(class_names), (n,))
    x = (templates[y] + 0.45 * torch.randn(n, 1, 14, 14)).clamp(0, 1)
    return TensorDataset((x - 0.5) / 0.35, y)


train_data, test_data = make_split(1600), make_split(400)
train_dataloader = DataLoader(train_data, batch_size=32, shuffle=True)
test_dataloader = DataLoader(test_data, batch_size=100, shuffle=False)


class FashionMNISTModelV2(nn.Module):
    def __init__(self, input_shape: int, hidden_units: int, output_shape: int):
        super().__init__()
        self.block_1 = nn.Sequential(
            nn.Conv2d(input_shape, hidden_units, 3, stride=1, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden_units, hidden_units, 3, stride=1, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2),
        )
        self.block_2 = nn.Sequential(
            nn.Conv2d(hidden_units, hidden_units, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden_units, hidden_units, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(hidden_units * 3 * 3, output_shape))

    def forward(self, x: torch.Tensor):
        return self.classifier(self.block_2(self.block_1(x)))


model_2 = FashionMNISTModelV2(input_shape=1, hidden_units=10, output_shape=len(class_names)).to(device)

loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(params=model_2.parameters(), lr=0.1)


def train_step():
    model_2.train()
    train_loss, train_right = 0.0, 0
    for X, y in train_dataloader:
        X, y = X.to(device), y.to(device)
        y_pred = model_2(X)
        loss = loss_fn(y_pred, y)
        train_loss += loss.item() * len(X)
        train_right += (y_pred.argmax(dim=1) == y).sum().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"Train loss: {train_loss / len(train_data):.5f} | Train accuracy: {100 * train_right / len(train_data):.2f}%")


def test_step():
    model_2.eval()
    right = 0
    with torch.inference_mode():
        for X, y in test_dataloader:
            right += (model_2(X.to(device)).argmax(dim=1) == y.to(device)).sum().item()
    print(f"Test accuracy: {100 * right / len(test_data):.2f}%\n")


for epoch in range(4):
    print(f"Epoch: {epoch}\n---------")
    train_step()
    test_step()
