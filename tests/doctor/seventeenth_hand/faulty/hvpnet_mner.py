import random

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel, get_linear_schedule_with_warmup


def set_seed(seed=2021):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


LABELS = ["O", "PER", "LOC", "ORG"]


def build_split(n, seed, seq_len=16):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, seq_len + 1, (n,), generator=g)
    mask = (torch.arange(seq_len)[None] < lengths[:, None]).long()
    ids = torch.randint(10, 130, (n, seq_len), generator=g)
    images = torch.randn(n, 12, generator=g)
    scene = (images[:, 0] > 0).long()
    kind = (ids - 10) // 20
    labels = torch.zeros_like(ids)
    labels[kind == 1] = 1
    labels[kind == 2] = 2
    ambiguous = kind == 3
    labels[ambiguous] = (2 + scene)[:, None].expand_as(labels)[ambiguous]
    ids = ids * mask
    labels = labels.masked_fill(mask == 0, -100)
    return TensorDataset(ids, mask, labels, images)


class HMNeTNERModel(nn.Module):
    def __init__(self, num_labels):
        super().__init__()
        config = BertConfig(vocab_size=130, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                            intermediate_size=64, max_position_embeddings=32)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.encoder_conv = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2 * 32))
        self.fc = nn.Linear(32, num_labels)
        self.dropout = nn.Dropout(0.1)

    def forward(self, input_ids, attention_mask, images, labels=None):
        prompt = self.encoder_conv(images).view(len(images), 2, 32)
        embeds = torch.cat([prompt, self.bert.embeddings.word_embeddings(input_ids)], dim=1)
        prompt_mask = torch.ones(len(images), 2, dtype=attention_mask.dtype)
        output = self.bert(inputs_embeds=embeds, attention_mask=torch.cat([prompt_mask, attention_mask], 1))
        logits = self.fc(self.dropout(output.last_hidden_state[:, 2:]))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return logits, loss


class NERTrainer:
    def __init__(self, train_data, dev_data, test_data, model, lr=4e-3, num_epochs=5):
        self.train_data, self.dev_data, self.test_data = train_data, dev_data, test_data
        self.model = model
        self.lr = lr
        self.num_epochs = num_epochs
        self.train_num_steps = len(train_data) * num_epochs
        self.multiModal_before_train()

    def multiModal_before_train(self):
        # bert lr
        parameters = []
        params = {"lr": self.lr, "weight_decay": 1e-2}
        params["params"] = []
        for name, param in self.model.named_parameters():
            if "bert" in name:
                params["params"].append(param)
        parameters.append(params)

        # prompt lr
        params = {"lr": self.lr, "weight_decay": 1e-2}
        params["params"] = []
        for name, param in self.model.named_parameters():
            if "encoder_conv" in name:
                params["params"].append(param)
        parameters.append(params)

        # fc lr
        params = {"lr": 4e-3, "weight_decay": 1e-2}
        params["params"] = []
        for name, param in self.model.named_parameters():
            if name.startswith("fc"):
                params["params"].append(param)

        self.optimizer = optim.AdamW(parameters)
        self.scheduler = get_linear_schedule_with_warmup(
            optimizer=self.optimizer, num_warmup_steps=int(0.05 * self.train_num_steps),
            num_training_steps=self.train_num_steps)

    def train(self):
        for epoch in range(1, self.num_epochs + 1):
            self.model.train()
            avg_loss = 0
            for input_ids, attention_mask, labels, images in self.train_data:
                self.optimizer.zero_grad()
                _, loss = self.model(input_ids, attention_mask, images, labels)
                avg_loss += loss.item()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
            print("Epoch {}/{}, loss {:.4f}, dev f1 {:.4f}".format(
                epoch, self.num_epochs, avg_loss / len(self.train_data), self.evaluate(self.dev_data)))
        print("Test f1 score: {:.4f}".format(self.evaluate(self.test_data)))

    def evaluate(self, data):
        self.model.eval()
        n_correct = n_pred = n_gold = 0
        with torch.no_grad():
            for input_ids, attention_mask, labels, images in data:
                logits, _ = self.model(input_ids, attention_mask, images)
                keep = labels != -100
                gold, pred = labels[keep], logits.argmax(-1)[keep]
                n_correct += ((gold == pred) & (gold != 0)).sum().item()
                n_pred += (pred != 0).sum().item()
                n_gold += (gold != 0).sum().item()
        return 2 * n_correct / max(n_pred + n_gold, 1)


if __name__ == "__main__":
    set_seed()
    train_loader = DataLoader(build_split(512, 1), batch_size=32, shuffle=True)
    dev_loader = DataLoader(build_split(200, 2), batch_size=64)
    test_loader = DataLoader(build_split(200, 3), batch_size=64)
    NERTrainer(train_loader, dev_loader, test_loader, HMNeTNERModel(len(LABELS))).train()
