import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(11)

N_CHARS, N_SYMBOLS = 4, 8


def draw(code):
    img = torch.zeros(24, 48)
    for pos, symbol in enumerate(code):
        left = pos * 12 + 1
        for bit, row in enumerate((0, 11, 22)):
            if (int(symbol) >> bit) & 1:
                img[row:row + 2, left:left + 10] = 1.0
    return img


def make(n):
    codes = torch.randint(0, N_SYMBOLS, (n, N_CHARS))
    images = torch.stack([draw(c) for c in codes]) + 0.5 * torch.randn(n, 24, 48)
    return images.unsqueeze(1), codes


class MyDataSet(Dataset):
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __getitem__(self, item):
        return self.x[item], self.y[item]

    def __len__(self):
        return len(self.x)


class CnnModel(nn.Module):
    def __init__(self):
        super(CnnModel, self).__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=[3, 3], stride=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(16, 32, kernel_size=[3, 3], stride=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(32, 64, kernel_size=[3, 3], stride=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2),
        )
        self.fc = nn.Sequential(
            nn.Linear(64 * 1 * 4, 128),
            nn.LeakyReLU(),
            nn.Linear(128, N_CHARS * N_SYMBOLS),
        )

    def forward(self, x):
        x = self.cnn(x)
        x = x.view(x.size(0), -1)
        return self.fc(x).view(-1, N_CHARS, N_SYMBOLS)


x, y = make(1200)
x_val, y_val = make(300)
mean, std = x.mean(), x.std()
loader = DataLoader(MyDataSet((x - mean) / std, y), batch_size=32, shuffle=True)
val_loader = DataLoader(MyDataSet((x_val - mean) / std, y_val), batch_size=100)

model = CnnModel()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

for epoch in range(6):
    model.train()
    total = 0.0
    for images, codes in loader:
        out = model(images)
        loss = criterion(out.flatten(0, 1), codes.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(images)
    model.eval()
    whole = chars = 0
    with torch.no_grad():
        for images, codes in val_loader:
            ok = model(images).argmax(-1) == codes
            whole += ok.all(1).sum().item()
            chars += ok.sum().item()
    print(f"epoch {epoch} loss {total / len(x):.4f} char acc {chars / y_val.numel():.3f} captcha acc {whole / len(x_val):.3f}")
