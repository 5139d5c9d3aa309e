import logging

import numpy as np
import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(message)s")


class NaiveBayes(nn.Module):
    """Generative label model: every labelling function votes by itself, given the true class; 0 is no vote."""

    def __init__(self, num_classes, num_lfs, init_acc=0.7):
        super().__init__()
        logit = 0.5 * np.log(init_acc / (1 - init_acc))
        self.accuracy = nn.Parameter(torch.full((num_lfs, num_classes), float(logit)))
        self.propensity = nn.Parameter(torch.zeros(num_lfs))
        self.class_balance = nn.Parameter(torch.zeros(num_classes))
        self.num_classes = num_classes

    def cll(self, votes):
        """Log-likelihood of the votes for every class."""
        vote = nn.functional.logsigmoid(self.propensity)
        no_vote = nn.functional.logsigmoid(-self.propensity)
        right = nn.functional.logsigmoid(2 * self.accuracy)
        wrong = nn.functional.logsigmoid(-2 * self.accuracy) - np.log(max(1, self.num_classes - 1))
        out = []
        for k in range(self.num_classes):
            given = torch.where(votes == k + 1, right[:, k], wrong[:, k])
            out.append(torch.where(votes == 0, no_vote, vote + given).sum(1))
        return torch.stack(out, dim=1)

    def forward(self, votes):
        return torch.logsumexp(self.cll(votes) + torch.log_softmax(self.class_balance, dim=0), dim=1)

    @torch.no_grad()
    def get_label_distribution(self, votes):
        return torch.softmax(self.cll(votes) + torch.log_softmax(self.class_balance, dim=0), dim=1)


class LearningConfig:
    epochs = 5
    batch_size = 64
    step_size = 0.02
    step_schedule = {2: 0.5, 4: 0.5}
    random_seed = 0


class LabelModel:
    def __init__(self, model, config):
        self.model, self.config = model, config

    def _do_estimate_label_model(self, batches):
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.config.step_size)
        rng = np.random.RandomState(self.config.random_seed)
        for epoch in range(self.config.epochs):
            if epoch in self.config.step_schedule:
                for group in optimizer.param_groups:
                    group["lr"] *= self.config.step_schedule[epoch]
            self.model.train()
            running_loss = 0.0
            for i_batch in rng.permutation(len(batches)):
                optimizer.zero_grad()
                loss = -torch.mean(self.model(batches[i_batch]))
                loss.backward()
                optimizer.step()
                running_loss += loss
            epoch_loss = running_loss / len(batches)
            logging.info("Epoch %d: train loss %.6f", epoch + 1, epoch_loss)


def votes_of(n, seed, accuracies, coverage):
    rng = np.random.RandomState(seed)
    y = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    right = rng.rand(n, len(accuracies)) < accuracies
    other = (y[:, None] + rng.randint(1, 3, right.shape)) % 3
    votes = np.where(right, y[:, None], other) + 1
    votes[rng.rand(*votes.shape) > coverage] = 0
    return torch.from_numpy(votes), torch.from_numpy(y)


def main():
    torch.manual_seed(0)
    config = LearningConfig()
    accuracies = np.array([0.9, 0.85, 0.8, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4])
    coverage = np.linspace(0.4, 0.9, 10)
    votes, _ = votes_of(16000, 1, accuracies, coverage)
    test_votes, y = votes_of(3000, 2, accuracies, coverage)
    model = NaiveBayes(3, 10)
    LabelModel(model, config)._do_estimate_label_model(list(votes.split(config.batch_size)))
    model.eval()
    predicted = model.get_label_distribution(test_votes).argmax(1)
    majority = torch.stack([(test_votes == k).sum(1) for k in (1, 2, 3)], dim=1).argmax(1)
    logging.info("accuracy %.4f (majority vote %.4f)", (predicted == y).float().mean(), (majority == y).float().mean())


if __name__ == "__main__":
    main()
