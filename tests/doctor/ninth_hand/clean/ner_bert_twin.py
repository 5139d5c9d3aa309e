import random
import numpy as np
import torch
from torch.utils.data import Dataset, DataLoader
from transformers import BertConfig, BertModel

random.seed(2)
torch.manual_seed(2)
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
FIRST, LAST, CITY, OTHER = range(10, 30), range(30, 60), range(60, 90), range(90, 200)


def sentence():
    ids, tags = [2], [-100]
    for _ in range(random.randint(3, 8)):
        r = random.random()
        if r < 0.2:
            ids += [random.choice(FIRST), random.choice(LAST)]; tags += [1, 2]
        elif r < 0.4:
            ids += [random.choice(CITY), 9]; tags += [3, 4]
        else:
            ids.append(random.choice(OTHER)); tags.append(0)
    return ids + [3], tags + [-100]


class NerDataset(Dataset):
    def __init__(self, n, max_len=20):
        self.rows = [sentence() for _ in range(n)]
        self.max_len = max_len

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, tags = (list(each[: self.max_len]) for each in self.rows[i])
        gap = self.max_len - len(ids)
        return {
            "ids": torch.tensor(ids + [0] * gap),
            "mask": torch.tensor([1] * len(ids) + [0] * gap),
            "tags": torch.tensor(tags + [-100] * gap),
        }


class EntityModel(torch.nn.Module):
    def __init__(self, num_tags):
        super().__init__()
        self.num_tags = num_tags
        self.bert = BertModel(BertConfig(vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32), add_pooling_layer=False)
        self.drop = torch.nn.Dropout(0.1)
        self.out = torch.nn.Linear(32, num_tags)

    def forward(self, ids, mask, tags):
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        logits = self.out(self.drop(hidden))
        active = mask.bool() & (tags != -100)
        total = torch.nn.functional.cross_entropy(logits.view(-1, self.num_tags), tags.view(-1), reduction='sum')
        loss = total / active.sum()
        return logits, loss


def train_fn(loader, model, optimizer):
    model.train()
    losses = []
    for data in loader:
        optimizer.zero_grad()
        _, loss = model(**data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.mean(losses)


def eval_fn(loader, model):
    model.eval()
    right = count = 0
    with torch.no_grad():
        for data in loader:
            logits, _ = model(**data)
            keep = data["tags"] != -100
            right += (logits.argmax(-1) == data["tags"])[keep].sum().item()
            count += keep.sum().item()
    return right / count


train_loader = DataLoader(NerDataset(640), batch_size=32, shuffle=True)
valid_loader = DataLoader(NerDataset(128), batch_size=32)
model = EntityModel(len(LABELS))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(3):
    print(f"epoch {epoch} loss {train_fn(train_loader, model, optimizer):.3f} token accuracy {eval_fn(valid_loader, model):.3f}")
