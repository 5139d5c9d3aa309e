import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel

RANDOM_SEED = 42
EPOCHS = 4
BATCH_SIZE = 20
MAX_LEN = 10
np.random.seed(RANDOM_SEED)
torch.manual_seed(RANDOM_SEED)


class TextDataset(Dataset):
    def __init__(self, ids, targets):
        self.ids, self.targets = ids, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, item):
        return {"input_ids": torch.tensor(self.ids[item]), "targets": torch.tensor(self.targets[item])}


def create_data_loader(df, shuffle):
    return DataLoader(TextDataset(df.ids.tolist(), df.label.tolist()), batch_size=BATCH_SIZE, shuffle=shuffle)


class SentimentClassifier(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=64, max_position_embeddings=MAX_LEN)
        self.bert = BertModel(config)
        self.drop = nn.Dropout(p=0.1)
        self.out = nn.Linear(32, n_classes)

    def forward(self, input_ids):
        pooled = self.bert(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).pooler_output
        return self.out(self.drop(pooled))


def make_reviews(n):
    labels = np.random.randint(0, 2, n)
    words = np.random.randint(2, 60, (n, MAX_LEN - 1))
    clue = np.random.rand(n, MAX_LEN - 1) < 0.35
    words = np.where(clue, 2 + 10 * labels[:, None] + np.random.randint(0, 10, words.shape), words)
    flipped = np.random.rand(n) < 0.15
    ids = np.concatenate([np.ones((n, 1), dtype=int), words], axis=1)
    return pd.DataFrame({"ids": ids.tolist(), "label": np.where(flipped, 1 - labels, labels)})


def train_epoch(model, data_loader, loss_fn, optimizer):
    model.train()
    correct, losses = 0, []
    for d in data_loader:
        outputs = model(d["input_ids"])
        loss = loss_fn(outputs, d["targets"])
        correct += (outputs.argmax(1) == d["targets"]).sum().item()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return correct / len(data_loader.dataset), np.mean(losses)


def eval_model(model, data_loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for d in data_loader:
            correct += (model(d["input_ids"]).argmax(1) == d["targets"]).sum().item()
    return correct / len(data_loader.dataset)


df = make_reviews(300)
n_folds = 5
kf = KFold(n_splits=n_folds, random_state=RANDOM_SEED, shuffle=True)
val_acc_mat = np.zeros((n_folds, EPOCHS))
loss_fn = nn.CrossEntropyLoss()

for fold_index, (train_index, val_index) in enumerate(kf.split(df)):
    train_data_loader = create_data_loader(df.iloc[train_index], shuffle=True)
    val_data_loader = create_data_loader(df.iloc[val_index], shuffle=False)
    model = SentimentClassifier(n_classes=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        train_acc, train_loss = train_epoch(model, train_data_loader, loss_fn, optimizer)
        val_acc_mat[fold_index, epoch] = eval_model(model, val_data_loader)
    print(f"fold {fold_index + 1} train acc {train_acc:.3f} val acc {val_acc_mat[fold_index, -1]:.3f}")
print(f"mean out-of-fold accuracy {val_acc_mat[:, -1].mean():.3f}")
