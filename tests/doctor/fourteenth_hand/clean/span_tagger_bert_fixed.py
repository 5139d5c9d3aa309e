import copy

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForTokenClassification

np.random.seed(13)
torch.manual_seed(13)

NUM_LABELS, VOCAB, LENGTH = 6, 500, 12
OTHER = 5
kind_of_word = np.random.choice(NUM_LABELS, size=VOCAB, p=[0.1, 0.1, 0.1, 0.1, 0.1, 0.5])


def annotate(n):
    ids = np.random.randint(5, VOCAB, size=(n, LENGTH))
    tags = kind_of_word[ids]
    noisy = np.random.rand(*tags.shape) < 0.15
    tags = np.where(noisy, np.random.randint(0, NUM_LABELS, tags.shape), tags)
    return TensorDataset(torch.tensor(ids), torch.tensor(tags))


train_data, dev_data, test_data = annotate(240), annotate(25), annotate(25)
train_loader = DataLoader(train_data, batch_size=20, shuffle=True)
dev_loader = DataLoader(dev_data, batch_size=25)
test_loader = DataLoader(test_data, batch_size=25)

config = BertConfig(
    vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=32, num_labels=NUM_LABELS,
)
model = BertForTokenClassification(config)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)


def score(loader):
    model.eval()
    hit = said = real = 0
    with torch.no_grad():
        for ids, tags in loader:
            guess = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.argmax(-1)
            hit += ((guess == tags) & (tags < OTHER)).sum().item()
            said += (guess < OTHER).sum().item()
            real += (tags < OTHER).sum().item()
    precision, recall = hit / max(said, 1), hit / real
    return precision, recall, 2 * precision * recall / max(precision + recall, 1e-9)


best_f, best_state = -1.0, None
for epoch in range(12):
    model.train()
    for ids, tags in train_loader:
        optimizer.zero_grad()
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=tags)
        out.loss.backward()
        optimizer.step()
    p, r, f = score(dev_loader)
    print(f"epoch {epoch} precision {p:.3f} recall {r:.3f} f {f:.3f}")
    if f > best_f:
        best_f, best_state = f, copy.deepcopy(model.state_dict())

model.load_state_dict(best_state)
p, r, f = score(test_loader)
print(f"best model, test set: precision {p:.3f} recall {r:.3f} f {f:.3f}")
