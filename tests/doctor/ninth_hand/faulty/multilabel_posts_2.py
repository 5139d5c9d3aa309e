"""Tags for forum posts: several may be right at once."""
import torch
import torch.nn as nn


class PostData:
    TAGS = ["python", "cuda", "docs", "bug", "install", "speed"]

    def __init__(self, n, seed, vocab=120):
        g = torch.Generator().manual_seed(seed)
        self.y = (torch.rand(n, 6, generator=g) < 0.35).float()
        topic = torch.rand(6, vocab, generator=torch.Generator().manual_seed(1)).pow(8)
        rate = 0.1 + (self.y @ topic) * 0.5
        self.x = torch.poisson(rate, generator=g).clamp(max=3)

    def batches(self, size, shuffle=True):
        order = torch.randperm(len(self.x)) if shuffle else torch.arange(len(self.x))
        for part in order.split(size):
            yield self.x[part], self.y[part]


class Tagger(nn.Module):
    def __init__(self, vocab=120, hidden=64, tags=6):
        super().__init__()
        self.fc1 = nn.Linear(vocab, hidden)
        self.fc2 = nn.Linear(hidden, tags)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.fc2(self.drop(self.act(self.fc1(x))))


class Fitter:
    def __init__(self, model, lr=2e-3):
        self.model = model
        self.loss = nn.BCEWithLogitsLoss()
        self.opt = torch.optim.RMSprop(model.parameters(), lr=lr)

    def fit(self, train, valid, epochs):
        for epoch in range(epochs):
            self.model.train()
            for x, y in train.batches(32):
                self.opt.zero_grad()
                loss = self.loss(self.model(x), y)
                loss.backward()
                self.opt.step()
            print(f"epoch {epoch}: loss {loss.item():.3f} micro-F1 {self.f1(valid):.3f}")

    @torch.no_grad()
    def f1(self, data):
        self.model.eval()
        tp = fp = fn = 0
        for x, y in data.batches(128, shuffle=False):
            scores = self.model(x)  # <- here
            predicted = (scores > 0.5).float()  # <- here
            tp += (predicted * y).sum().item()
            fp += (predicted * (1 - y)).sum().item()
            fn += ((1 - predicted) * y).sum().item()
        return 2 * tp / max(2 * tp + fp + fn, 1)


if __name__ == "__main__":
    torch.manual_seed(0)
    Fitter(Tagger()).fit(PostData(1600, 10), PostData(300, 11), epochs=5)
