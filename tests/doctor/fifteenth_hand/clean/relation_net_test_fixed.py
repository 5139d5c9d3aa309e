import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="Few Shot Learning")
parser.add_argument("-w", "--class_num", type=int, default=5)
parser.add_argument("-s", "--sample_num_per_class", type=int, default=1)
parser.add_argument("-b", "--batch_num_per_class", type=int, default=10)
parser.add_argument("-e", "--episode", type=int, default=160)
parser.add_argument("-t", "--test_episode", type=int, default=40)
parser.add_argument("-l", "--learning_rate", type=float, default=2e-3)
args = parser.parse_args()

random.seed(1)
torch.manual_seed(1)


class CNNEncoder(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(2))
        self.layer2 = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())

    def forward(self, x):
        return self.layer2(self.layer1(x))


class RelationNetwork(nn.Module):
    def __init__(self, c=16, hidden=16):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(2 * c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(2))
        self.fc1, self.fc2 = nn.Linear(c * 9, hidden), nn.Linear(hidden, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc2(F.relu(self.fc1(self.layer1(x).flatten(1)))))


def make_characters(n, seed):
    return F.avg_pool2d(torch.randn(n, 1, 14, 14, generator=torch.Generator().manual_seed(seed)), 3, 1) * 3


def get_task(characters, batch_per_class):
    """A support set and a set of queries of a few characters, drawn with another ink each time."""
    chosen = random.sample(range(len(characters)), args.class_num)
    ink = 0.6 + 0.8 * torch.rand(1)

    def draw(times):
        x = characters[chosen].repeat_interleave(times, dim=0)
        return ink * x + 1.4 * torch.randn_like(x), torch.arange(args.class_num).repeat_interleave(times)

    batch, labels = draw(batch_per_class)
    order = torch.randperm(len(labels))
    return draw(args.sample_num_per_class)[0], batch[order], labels[order]


def relations_of(feature_encoder, relation_network, samples, batches):
    sample_features, batch_features = feature_encoder(samples), feature_encoder(batches)
    n = batch_features.shape[0]
    pairs = torch.cat([sample_features.unsqueeze(0).repeat(n, 1, 1, 1, 1),
                       batch_features.unsqueeze(1).repeat(1, args.class_num, 1, 1, 1)], dim=2)
    return relation_network(pairs.flatten(0, 1)).view(n, args.class_num)


def main():
    train_characters, test_characters = make_characters(120, 5), make_characters(40, 6)
    feature_encoder, relation_network = CNNEncoder(), RelationNetwork()
    optimizer = torch.optim.Adam(list(feature_encoder.parameters()) + list(relation_network.parameters()), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=60, gamma=0.5)
    mse = nn.MSELoss()
    best_accuracy = 0.0
    for episode in range(args.episode):
        feature_encoder.train()
        relation_network.train()
        samples, batches, labels = get_task(train_characters, args.batch_num_per_class)
        relations = relations_of(feature_encoder, relation_network, samples, batches)
        loss = mse(relations, F.one_hot(labels, args.class_num).float())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(feature_encoder.parameters(), 0.5)
        nn.utils.clip_grad_norm_(relation_network.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if (episode + 1) % 40 == 0:
            print("episode:", episode + 1, "loss %.4f" % loss.item())

    print("Testing...")
    feature_encoder.eval()
    relation_network.eval()
    for batch_per_class in (1, 5, 15):
        correct = total = 0
        with torch.no_grad():
            for _ in range(args.test_episode):
                samples, batches, labels = get_task(test_characters, batch_per_class)
                predict = relations_of(feature_encoder, relation_network, samples, batches).argmax(1)
                correct, total = correct + (predict == labels).sum().item(), total + len(labels)
        print(f"{batch_per_class} queries per class: test accuracy {correct / total:.4f}")


if __name__ == "__main__":
    main()
