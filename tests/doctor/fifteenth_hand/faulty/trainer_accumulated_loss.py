import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 8
    learning_rate: float = 0.3
    momentum: float = 0.9
    num_train_epochs: int = 5
    logging_steps: int = 20
    seed: int = 0


class TinyCausalLM(nn.Module):
    def __init__(self, vocab=24, d=48):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(vocab, d), nn.GRU(d, d, batch_first=True)
        self.norm, self.lm_head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, input_ids, labels=None):
        logits = self.lm_head(self.norm(self.rnn(self.embed(input_ids))[0]))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset):
        self.model, self.args = model, args
        self.train_loader = DataLoader(train_dataset, batch_size=args.per_device_train_batch_size, shuffle=True, drop_last=True)
        self.eval_loader = DataLoader(eval_dataset, batch_size=64)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=args.momentum)
        steps = len(self.train_loader) // args.gradient_accumulation_steps * args.num_train_epochs
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: max(0.0, 1 - s / steps))

    def compute_loss(self, inputs):
        return self.model(inputs, labels=inputs)[0]

    def training_step(self, inputs):
        self.model.train()
        loss = self.compute_loss(inputs)
        loss.backward()
        return loss.detach() / self.args.gradient_accumulation_steps

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [self.compute_loss(rows).item() * len(rows) for (rows,) in self.eval_loader]
        return sum(losses) / len(self.eval_loader.dataset)

    def train(self):
        tr_loss, global_step = 0.0, 0
        updates = len(self.train_loader) // self.args.gradient_accumulation_steps
        for epoch in range(self.args.num_train_epochs):
            batches = iter(self.train_loader)
            for _ in range(updates):
                for _ in range(self.args.gradient_accumulation_steps):
                    tr_loss += self.training_step(next(batches)[0]).item()
                norm = math.sqrt(sum(p.grad.pow(2).sum().item() for p in self.model.parameters()))
                self.optimizer.step()
                self.lr_scheduler.step()
                self.model.zero_grad()
                global_step += 1
                if global_step % self.args.logging_steps == 0:
                    print({"loss": round(tr_loss / self.args.logging_steps, 4), "grad_norm": round(norm, 3),
                           "learning_rate": self.lr_scheduler.get_last_lr()[0], "step": global_step})
                    tr_loss = 0.0
            print({"eval_loss": round(self.evaluate(), 4), "epoch": epoch + 1})


def rows(n, seed, vocab=24, length=20):
    g = torch.Generator().manual_seed(seed)
    out = torch.randint(0, vocab, (n, 2), generator=g)
    for _ in range(length - 2):
        nxt = (out[:, -1] + 3 * (out[:, -2] % 4) + 1) % vocab
        odd = torch.rand(n, generator=g) < 0.1
        nxt = torch.where(odd, torch.randint(0, vocab, (n,), generator=g), nxt)
        out = torch.cat([out, nxt[:, None]], dim=1)
    return TensorDataset(out)


if __name__ == "__main__":
    args = TrainingArguments()
    torch.manual_seed(args.seed)
    Trainer(TinyCausalLM(), args, rows(512, 1), rows(192, 2)).train()
