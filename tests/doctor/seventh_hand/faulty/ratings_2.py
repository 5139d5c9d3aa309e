"""Matrix factorisation of film ratings, plain gradient descent."""
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

USERS, FILMS, RANK = 60, 80, 6


def drawn():
    torch.manual_seed(14)
    taste, kind = torch.randn(USERS, RANK) / RANK**0.5, torch.randn(FILMS, RANK)
    users, films = torch.randint(0, USERS, (3000,)), torch.randint(0, FILMS, (3000,))
    stars = (taste[users] * kind[films]).sum(1) + 0.2 * torch.randn(3000)
    return TensorDataset(users, films, stars)


class Factorisation(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, RANK), nn.Embedding(FILMS, RANK)
        self.user_bias, self.film_bias = nn.Embedding(USERS, 1), nn.Embedding(FILMS, 1)
        for table in (self.user, self.film):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_bias, self.film_bias):
            nn.init.zeros_(table.weight)

    def forward(self, users, films):
        dot = (self.user(users) * self.film(films)).sum(1)
        return dot + self.user_bias(users).squeeze(1) + self.film_bias(films).squeeze(1)

    def penalty(self):
        return sum(table.weight.abs().sum() for table in (self.user, self.film))


def fit(model, data, epochs=6, lr=0.5, l1=1e-4, batch_size=60):
    count = len(data) * 8 // 10
    train_loader = DataLoader(data, batch_size, sampler=SubsetRandomSampler(range(count)))
    held_out = DataLoader(data, 300, sampler=range(count, len(data)))
    criterion = nn.MSELoss(reduction="sum")  # <- here
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.0)
    for epoch in range(epochs):
        model.train()
        for users, films, stars in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(users, films), stars) + l1 * model.penalty()  # <- here
            loss.backward()
            optimizer.step()  # <- here
        model.eval()
        with torch.no_grad():
            off = sum(((model(users, films) - stars) ** 2).sum().item() for users, films, stars in held_out)
        print(f"epoch {epoch}: loss {loss.item():.3f}, held out {off / (len(data) - count):.3f}, penalty {model.penalty().item():.1f}")


if __name__ == "__main__":
    data = drawn()
    fit(Factorisation(), data)
