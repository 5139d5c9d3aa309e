import itertools
import random

import torch
from torch import nn
from torch.utils.data import DataLoader

random.seed(3)
torch.manual_seed(3)
WORDS = 300
TOPICS = 6


def sentence(topic, rng):
    return [rng.randrange(topic * 50, topic * 50 + 50) if rng.random() < 0.5 else rng.randrange(WORDS) for _ in range(12)]


def texts(n, seed):
    rng = random.Random(seed)
    labels = [rng.randrange(TOPICS) for _ in range(n)]
    return [sentence(t, rng) for t in labels], labels


class SentenceEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.emb = nn.EmbeddingBag(WORDS, dim, mode="mean")
        self.proj = nn.Linear(dim, dim)
        self.steps = 0

    def encode(self, rows):
        return nn.functional.normalize(self.proj(self.emb(torch.tensor(rows))), dim=1)

    def fit(self, train_dataloader, epochs, steps_per_epoch=None, lr=1e-3, warmup_steps=0):
        if steps_per_epoch is None or steps_per_epoch == 0:
            steps_per_epoch = len(train_dataloader)
        total = int(steps_per_epoch * epochs)
        optimizer = torch.optim.AdamW(self.parameters(), lr=lr, weight_decay=0.01)
        factor = lambda s: (s + 1) / warmup_steps if s < warmup_steps else max(0.0, (total - s) / max(1, total - warmup_steps))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        data_iterator = iter(train_dataloader)
        for epoch in range(epochs):
            self.train()
            running = 0.0
            for _ in range(steps_per_epoch):
                try:
                    a, b, score = next(data_iterator)
                except StopIteration:
                    data_iterator = iter(train_dataloader)
                    a, b, score = next(data_iterator)
                loss = nn.functional.mse_loss((self.encode(a) * self.encode(b)).sum(1), score)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                self.steps += 1
                running += loss.item()
            print(f"Epoch {epoch + 1}/{epochs}: loss {running / steps_per_epoch:.4f} optimization steps so far {self.steps}")


def collate(pairs):
    a, b, s = zip(*pairs)
    return list(a), list(b), torch.tensor(s)


class DistillationSetFitTrainer:
    def __init__(self, teacher, student, train_texts, num_epochs=4, batch_size=16):
        self.teacher, self.student = teacher, student
        self.train_texts, self.num_epochs, self.batch_size = train_texts, num_epochs, batch_size

    def train(self):
        with torch.no_grad():
            emb = self.teacher.eval().encode(self.train_texts)
        pairs = [(self.train_texts[i], self.train_texts[j], float(emb[i] @ emb[j]))
                 for i, j in itertools.combinations(range(len(self.train_texts)), 2)]
        pairs = random.sample(pairs, 640)
        train_dataloader = DataLoader(pairs, shuffle=True, batch_size=self.batch_size, collate_fn=collate)
        train_steps = len(train_dataloader) * self.num_epochs
        print(f"Num examples = {len(pairs)}, Num epochs = {self.num_epochs}, Total optimization steps = {train_steps}")
        self.student.fit(train_dataloader, epochs=self.num_epochs, steps_per_epoch=train_steps, warmup_steps=int(train_steps * 0.1))


@torch.no_grad()
def knn_accuracy(model, train, test):
    model.eval()
    (xa, ya), (xb, yb) = train, test
    near = (model.encode(xb) @ model.encode(xa).T).topk(5, dim=1).indices
    vote = torch.tensor(ya)[near].mode(dim=1).values
    return (vote == torch.tensor(yb)).float().mean().item()


def main():
    big, train, test = texts(900, 1), texts(120, 2), texts(400, 3)
    teacher = SentenceEncoder(64)
    opt = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    same = torch.tensor([[float(a == b) for b in big[1]] for a in big[1]])
    for _ in range(80):
        z = teacher.encode(big[0])
        loss = nn.functional.mse_loss(z @ z.T, same)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"teacher accuracy {knn_accuracy(teacher, train, test):.3f}")
    student = SentenceEncoder(16)
    DistillationSetFitTrainer(teacher, student, train[0]).train()
    print(f"student accuracy {knn_accuracy(student, train, test):.3f} after {student.steps} optimization steps")


if __name__ == "__main__":
    main()
