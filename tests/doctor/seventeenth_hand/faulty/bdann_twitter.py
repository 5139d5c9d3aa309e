"""BDANN on a small synthetic rumor corpus: text + image features, event-adversarial branch."""
import copy
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn import metrics
from torch.autograd import Function
from torch.utils.data import DataLoader, Dataset

SEED = 42
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)

VOCAB, SEQ_LEN, EVENTS = 300, 20, 12


def make_posts(events, n, rng):
    posts = {"text": [], "image": [], "label": [], "event": []}
    for _ in range(n):
        e = int(rng.choice(events))
        label = int(rng.random() < (0.85 if e % 2 else 0.15))
        words = rng.integers(200, VOCAB, SEQ_LEN)
        slot = rng.random(SEQ_LEN)
        words = np.where(slot < 0.35, 40 + e * 12 + rng.integers(0, 12, SEQ_LEN), words)
        words = np.where(slot > 0.94, 10 + label * 15 + rng.integers(0, 15, SEQ_LEN), words)
        posts["text"].append(words)
        posts["image"].append(rng.normal(0, 1, 16) + 0.15 * (2 * label - 1))
        posts["label"].append(label)
        posts["event"].append(e)
    return {k: np.array(v) for k, v in posts.items()}


def get_data():
    rng = np.random.default_rng(SEED)
    dev = make_posts(np.arange(8), 1400, rng)
    order = rng.permutation(1400)
    train = {k: v[order[:1100]] for k, v in dev.items()}
    validate = {k: v[order[1100:]] for k, v in dev.items()}
    test = make_posts(np.arange(8, EVENTS), 400, rng)
    return train, validate, test


class Rumor_Data(Dataset):
    def __init__(self, dataset):
        self.text = torch.from_numpy(dataset["text"]).long()
        self.image = torch.from_numpy(dataset["image"]).float()
        self.label = torch.from_numpy(dataset["label"]).long()
        self.event_label = torch.from_numpy(dataset["event"]).long()
        print("TEXT: %d, Image: %d, label: %d" % (len(self.text), len(self.image), len(self.label)))

    def __len__(self):
        return len(self.label)

    def __getitem__(self, idx):
        return (self.text[idx], self.image[idx]), self.label[idx], self.event_label[idx]


class ReverseLayerF(Function):
    @staticmethod
    def forward(ctx, x, lambd):
        ctx.lambd = lambd
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.lambd, None


class CNN_Fusion(nn.Module):
    def __init__(self, embed_dim=32, hidden_dim=32, filter_num=16, dropout=0.3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, embed_dim)
        self.convs = nn.ModuleList([nn.Conv1d(embed_dim, filter_num, k) for k in (1, 2, 3)])
        self.fc1 = nn.Linear(3 * filter_num, hidden_dim)
        self.image_fc1 = nn.Linear(16, hidden_dim)
        self.dropout = nn.Dropout(dropout)
        self.class_classifier = nn.Linear(2 * hidden_dim, 2)
        self.domain_classifier = nn.Sequential(nn.Linear(2 * hidden_dim, hidden_dim), nn.LeakyReLU(),
                                               nn.Linear(hidden_dim, 8))

    def forward(self, text, image):
        text = self.embed(text).transpose(1, 2)
        text = torch.cat([F.relu(conv(text)).max(dim=2)[0] for conv in self.convs], dim=1)
        text = F.leaky_relu(self.fc1(self.dropout(text)))
        image = F.leaky_relu(self.image_fc1(image))
        feature = torch.cat((text, image), 1)
        return self.class_classifier(feature), self.domain_classifier(ReverseLayerF.apply(feature, 0.1))


def predict(model, loader):
    model.eval()
    scores, labels = [], []
    with torch.no_grad():
        for data, label, _ in loader:
            scores.append(F.softmax(model(*data)[0], dim=1).numpy())
            labels.append(label.numpy())
    return np.concatenate(scores), np.concatenate(labels)


def main():
    train, validate, test = get_data()
    train_dataset = Rumor_Data(train)
    validate_dataset = Rumor_Data(validate)
    test_dataset = Rumor_Data(validate)
    train_loader = DataLoader(train_dataset, batch_size=32, shuffle=True)
    validate_loader = DataLoader(validate_dataset, batch_size=32, shuffle=False)
    test_loader = DataLoader(test_dataset, batch_size=32, shuffle=False)

    model = CNN_Fusion()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    best_validate_acc, best_model = 0.0, None
    for epoch in range(5):
        model.train()
        cost_vector = []
        for data, label, event in train_loader:
            class_outputs, domain_outputs = model(*data)
            loss = criterion(class_outputs, label) + criterion(domain_outputs, event)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cost_vector.append(loss.item())
        score, true = predict(model, validate_loader)
        validate_acc = metrics.accuracy_score(true, score.argmax(1))
        print("Epoch [%d/5], Loss: %.4f, Validate_Acc: %.4f" % (epoch + 1, np.mean(cost_vector), validate_acc))
        if validate_acc > best_validate_acc:
            best_validate_acc = validate_acc
            best_model = copy.deepcopy(model.state_dict())

    print("testing model")
    model.load_state_dict(best_model)
    score, true = predict(model, test_loader)
    print("Classification Acc: %.4f, AUC-ROC: %.4f, F1: %.4f" % (
        metrics.accuracy_score(true, score.argmax(1)), metrics.roc_auc_score(true, score[:, 1]),
        metrics.f1_score(true, score.argmax(1), average="macro")))


if __name__ == "__main__":
    main()
