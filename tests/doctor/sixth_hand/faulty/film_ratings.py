"""Ratings of films: sparse embeddings of people and films, a dense tower above them."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def ratings(people=200, films=120, count=6000, seed=9):
    generator = torch.Generator().manual_seed(seed)
    taste, genre = torch.randn(people, 4, generator=generator), torch.randn(films, 4, generator=generator)
    who = torch.randint(0, people, (count,), generator=generator)
    what = torch.randint(0, films, (count,), generator=generator)
    stars = (taste[who] * genre[what]).sum(1) / 2 + 0.2 * torch.randn(count, generator=generator)
    cut = int(0.9 * count)
    return (who[:cut], what[:cut], stars[:cut]), (who[cut:], what[cut:], stars[cut:]), people, films


class Towers(nn.Module):
    def __init__(self, people, films, width=16):
        super().__init__()
        self.people = nn.Embedding(people, width, sparse=True)
        self.films = nn.Embedding(films, width, sparse=True)
        self.deep = nn.Sequential(nn.Linear(3 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, who, what):
        a, b = self.people(who), self.films(what)
        return self.deep(torch.cat([a, b, a * b], dim=1)).squeeze(1)


def make_optimizers(model, lr):
    sparse = torch.optim.SparseAdam(list(model.people.parameters()) + list(model.films.parameters()), lr=lr)  # <- here
    dense = torch.optim.Adam(model.deep.parameters(), lr=lr)
    return dense, sparse


class Fit:
    def __init__(self, model, lr=5e-3):
        self.model = model
        self.dense, self.sparse = make_optimizers(model, lr)
        self.criterion = nn.MSELoss()

    def step(self, who, what, stars):
        self.dense.zero_grad()
        self.sparse.zero_grad()
        loss = self.criterion(self.model(who, what), stars)
        loss.backward()
        self.dense.step()  # <- here
        return loss.detach()

    @torch.no_grad()
    def rmse(self, who, what, stars):
        return self.criterion(self.model(who, what), stars).sqrt().item()


def main():
    torch.manual_seed(9)
    train, test, people, films = ratings()
    loader = DataLoader(TensorDataset(*train), batch_size=128, shuffle=True)
    fit = Fit(Towers(people, films))
    for epoch in range(4):
        total = torch.zeros(())
        for batch in loader:
            total += fit.step(*batch)
        print(f"epoch {epoch}: training {total.item() / len(loader):.3f}, test rmse {fit.rmse(*test):.3f}")


if __name__ == "__main__":
    main()
