import logging
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
logger = logging.getLogger("gradient_descent_trainer")


def sentiment(n, seed, length=12):
    """Words have a hidden polarity; the label is the sign of the sum, 'not' flips the next word."""
    g = torch.Generator().manual_seed(seed)
    polarity = torch.randn(60, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(2, 60, (n, length), generator=g)
    negated = torch.rand(n, length, generator=g) < 0.15
    tokens[negated] = 1
    weight = polarity[tokens]
    weight[negated] = 0.0
    weight[:, 1:] = torch.where(negated[:, :-1], -weight[:, 1:], weight[:, 1:])
    return tokens, (weight.sum(1) > 0).long()


class BasicClassifier(nn.Module):
    def __init__(self, vocab_size=60, embedding_dim=32, hidden=48):
        super().__init__()
        self.text_field_embedder = nn.Embedding(vocab_size, embedding_dim)
        self.seq2seq = nn.Conv1d(embedding_dim, hidden, 3, padding=1)
        self.classification_layer = nn.Linear(hidden, 2)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, tokens, label):
        x = self.text_field_embedder(tokens).transpose(1, 2)
        x = torch.relu(self.seq2seq(x)).mean(dim=2)
        logits = self.classification_layer(x)
        return {"logits": logits, "loss": self.loss(logits.float(), label)}


class GradientDescentTrainer:
    def __init__(self, model, optimizer, data_loader, validation_data_loader, num_epochs=5,
                 grad_clipping=None, use_amp=False):
        self.model = model
        self.optimizer = optimizer
        self.data_loader = data_loader
        self._validation_data_loader = validation_data_loader
        self._num_epochs = num_epochs
        self._grad_clipping = grad_clipping
        self._use_amp = use_amp
        self._scaler = torch.amp.GradScaler("cpu") if use_amp else None

    def clip_gradient(self):
        """Clip each gradient's values to [-grad_clipping, grad_clipping]."""
        if self._grad_clipping is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_value_(self.model.parameters(), self._grad_clipping)

    def batch_outputs(self, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._use_amp):
            return self.model(*batch)

    def _train_epoch(self, epoch):
        self.model.train()
        train_loss, instances = 0.0, 0
        for batch in self.data_loader:
            self.optimizer.zero_grad()
            loss = self.batch_outputs(batch)["loss"]
            if not math.isfinite(loss.item()):
                raise ValueError("nan loss encountered")
            if self._scaler is not None:
                self._scaler.scale(loss).backward()
            else:
                loss.backward()
            self.clip_gradient()
            if self._scaler is not None:
                self._scaler.step(self.optimizer)
                self._scaler.update()
            else:
                self.optimizer.step()
            train_loss += loss.item() * len(batch[1])
            instances += len(batch[1])
        return train_loss / instances

    def _validation_loss(self):
        self.model.eval()
        loss, correct, total = 0.0, 0, 0
        with torch.no_grad():
            for batch in self._validation_data_loader:
                output = self.batch_outputs(batch)
                loss += output["loss"].item() * len(batch[1])
                correct += (output["logits"].argmax(1) == batch[1]).sum().item()
                total += len(batch[1])
        return loss / total, correct / total

    def train(self):
        for epoch in range(self._num_epochs):
            train_loss = self._train_epoch(epoch)
            val_loss, val_acc = self._validation_loss()
            logger.info("epoch %d | training_loss %.4f | validation_loss %.4f | validation_accuracy %.4f",
                        epoch, train_loss, val_loss, val_acc)


if __name__ == "__main__":
    torch.manual_seed(13370)
    train_loader = DataLoader(TensorDataset(*sentiment(1600, 1)), batch_size=32, shuffle=True)
    dev_loader = DataLoader(TensorDataset(*sentiment(400, 2)), batch_size=100)
    model = BasicClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    GradientDescentTrainer(model, optimizer, train_loader, dev_loader, num_epochs=6,
                           grad_clipping=1.0, use_amp=True).train()
