import numpy as np
import torch
import torch.nn as nn
import torch.utils.data
from sklearn.metrics import f1_score

__author__ = "course staff"


class TorchRNNClassifierModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, hidden_dim, output_dim, dropout=0.5):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.LSTM(embed_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.classifier_layer = nn.Linear(2 * hidden_dim, output_dim)

    def forward(self, X, seq_lengths):
        embs = self.dropout(self.embedding(X))
        embs = nn.utils.rnn.pack_padded_sequence(embs, seq_lengths, batch_first=True, enforce_sorted=False)
        _, (state, _) = self.rnn(embs)
        state = torch.cat([state[0], state[1]], dim=1)
        return self.classifier_layer(self.dropout(state))


class TorchRNNClassifier:
    """LSTM-based Recurrent Neural Network for classification, with the usual fit/predict interface."""

    def __init__(self, vocab, embed_dim=50, hidden_dim=50, max_iter=30, eta=0.005, batch_size=64, dev_every=5):
        self.vocab = dict(zip(vocab, range(1, len(vocab) + 1)))
        self.embed_dim, self.hidden_dim = embed_dim, hidden_dim
        self.max_iter, self.eta = max_iter, eta
        self.batch_size, self.dev_every = batch_size, dev_every
        self.dev_predictions = {}

    def _prepare_dataset(self, X):
        lengths = torch.tensor([len(ex) for ex in X])
        new_X = torch.zeros(len(X), int(lengths.max()), dtype=torch.long)
        for i, ex in enumerate(X):
            new_X[i, :len(ex)] = torch.tensor([self.vocab[w] for w in ex])
        return new_X, lengths

    def fit(self, X, y, X_dev=None, y_dev=None):
        self.classes_ = sorted(set(y))
        class2index = dict(zip(self.classes_, range(len(self.classes_))))
        dataset = torch.utils.data.TensorDataset(
            *self._prepare_dataset(X), torch.tensor([class2index[label] for label in y]))
        dataloader = torch.utils.data.DataLoader(dataset, batch_size=self.batch_size, shuffle=True)
        self.model = TorchRNNClassifierModel(
            len(self.vocab) + 1, self.embed_dim, self.hidden_dim, len(self.classes_))
        loss = nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.eta, weight_decay=1e-5)
        self.model.train()
        for iteration in range(1, self.max_iter + 1):
            epoch_error = 0.0
            for X_batch, batch_seq_lengths, y_batch in dataloader:
                batch_preds = self.model(X_batch, batch_seq_lengths)
                err = loss(batch_preds, y_batch)
                epoch_error += err.item() * len(y_batch)
                optimizer.zero_grad()
                err.backward()
                optimizer.step()
            if X_dev is not None and iteration % self.dev_every == 0:
                self.dev_predictions[iteration] = self.predict(X_dev)
                print("Finished epoch {} of {}; error is {:.4f}; dev macro F1 {:.4f}".format(
                    iteration, self.max_iter, epoch_error / len(dataset),
                    f1_score(y_dev, self.dev_predictions[iteration], average="macro")))
        return self

    def predict_proba(self, X):
        self.model.eval()
        with torch.no_grad():
            preds = self.model(*self._prepare_dataset(X))
            return torch.softmax(preds, dim=1).numpy()

    def predict(self, X):
        return [self.classes_[i] for i in self.predict_proba(X).argmax(axis=1)]


def sst_like(n, seed, vocab):
    rng = np.random.default_rng(seed)
    polarity = np.random.default_rng(0).normal(size=len(vocab))
    X, y = [], []
    for _ in range(n):
        idx = rng.integers(0, len(vocab), rng.integers(5, 13))
        score = polarity[idx].sum() + rng.normal(0, 0.8)
        X.append([vocab[i] for i in idx])
        y.append("positive" if score > 1 else "negative" if score < -1 else "neutral")
    return X, y


if __name__ == "__main__":
    np.random.seed(42)
    torch.manual_seed(42)
    vocab = ["w{}".format(i) for i in range(250)]
    X_train, y_train = sst_like(900, 1, vocab)
    X_dev, y_dev = sst_like(300, 2, vocab)
    X_test, y_test = sst_like(400, 3, vocab)
    mod = TorchRNNClassifier(vocab, max_iter=15)
    mod.fit(X_train, y_train, X_dev=X_dev, y_dev=y_dev)
    print("train macro F1 {:.4f}".format(f1_score(y_train, mod.predict(X_train), average="macro")))
    print("test macro F1 {:.4f}".format(f1_score(y_test, mod.predict(X_test), average="macro")))
