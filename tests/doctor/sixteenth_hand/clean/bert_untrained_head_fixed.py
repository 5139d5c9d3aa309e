import os
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.manual_seed(7)

PAD, CLS, MASK, VOCAB, LEN, NUM_LABELS = 0, 1, 2, 45, 12, 5


def sentences(n):
    topic = torch.randint(0, NUM_LABELS, (n,))
    words = 5 + topic[:, None] * 8 + torch.randint(0, 8, (n, LEN - 1))
    noise = torch.randint(5, VOCAB, (n, LEN - 1))
    words = torch.where(torch.rand(n, LEN - 1) < 0.2, noise, words)
    return torch.cat([torch.full((n, 1), CLS), words], dim=1), topic


corpus, _ = sentences(1500)
train_ids, train_labels = sentences(600)
test_ids, test_labels = sentences(200)

config = BertConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=96, max_position_embeddings=LEN, num_labels=NUM_LABELS, pad_token_id=PAD)

# pretraining, as bert-base was
mlm = BertForMaskedLM(config)
optimizer = torch.optim.AdamW(mlm.parameters(), lr=2e-3)
mlm.train()
for epoch in range(2):
    for (ids,) in DataLoader(TensorDataset(corpus), batch_size=50, shuffle=True):
        labels = ids.clone()
        masked = (torch.rand(ids.shape) < 0.15) & (ids != CLS)
        labels[~masked] = -100
        loss = mlm(input_ids=ids.masked_fill(masked, MASK), attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"mlm epoch {epoch} loss {loss.item():.3f}")

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "bert-mini")
    mlm.save_pretrained(path)
    model = BertForSequenceClassification.from_pretrained(path, num_labels=NUM_LABELS)

optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model.train()
for epoch in range(5):
    for ids, labels in DataLoader(TensorDataset(train_ids, train_labels), batch_size=40, shuffle=True):
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"fine-tuning epoch {epoch} loss {loss.item():.3f}")

model.eval()
correct = 0
with torch.no_grad():
    for ids, labels in DataLoader(TensorDataset(test_ids, test_labels), batch_size=50):
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        correct += (logits.argmax(-1) == labels).sum().item()
print(f"accuracy on {len(test_ids)} sentences: {correct / len(test_ids):.3f}")
