import numpy as np
import torch
import torch.optim as optim
from sklearn.metrics import cohen_kappa_score, precision_recall_fscore_support
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.utils.data import DataLoader, TensorDataset


class DAIN_Layer(nn.Module):
    """Adaptive shift, scale and gate of a multivariate time series (batch, features, time)."""

    def __init__(self, input_dim, mean_lr=0.1, gate_lr=0.1, scale_lr=0.1):
        super(DAIN_Layer, self).__init__()
        self.mean_lr, self.gate_lr, self.scale_lr = mean_lr, gate_lr, scale_lr
        self.mean_layer = nn.Linear(input_dim, input_dim, bias=False)
        self.mean_layer.weight.data = torch.eye(input_dim)
        self.scaling_layer = nn.Linear(input_dim, input_dim, bias=False)
        self.scaling_layer.weight.data = torch.eye(input_dim)
        self.gating_layer = nn.Linear(input_dim, input_dim)
        self.eps = 1e-8

    def forward(self, x):
        avg = torch.mean(x, 2)
        x = x - self.mean_layer(avg).unsqueeze(2)
        std = torch.sqrt(torch.mean(x ** 2, 2) + self.eps)
        adaptive_std = self.scaling_layer(std)
        adaptive_std = torch.where(adaptive_std <= self.eps, torch.ones_like(adaptive_std), adaptive_std)
        x = x / adaptive_std.unsqueeze(2)
        gate = torch.sigmoid(self.gating_layer(torch.mean(x.abs(), 2)))
        return x * gate.unsqueeze(2)


class MLP(nn.Module):
    def __init__(self, features=10, window=15):
        super(MLP, self).__init__()
        self.dean = DAIN_Layer(features)
        self.base = nn.Sequential(nn.Linear(features * window, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 3))

    def forward(self, x):
        return self.base(self.dean(x).flatten(1))


def lob_epoch_trainer(model, loader, model_optimizer):
    model.train()
    criterion = CrossEntropyLoss()
    train_loss, counter = 0, 0

    for (inputs, targets) in loader:
        model_optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        model_optimizer.step()

        train_loss += loss.item() * inputs.size(0)
        counter += inputs.size(0)

    loss = (loss / counter).detach().numpy()
    return loss


def lob_evaluator(model, loader):
    model.eval()
    true_labels, predicted_labels = [], []
    with torch.no_grad():
        for (inputs, targets) in loader:
            predicted_labels.append(model(inputs).argmax(1).numpy())
            true_labels.append(targets.numpy())
    true_labels, predicted_labels = np.concatenate(true_labels), np.concatenate(predicted_labels)
    precision, recall, f1, _ = precision_recall_fscore_support(true_labels, predicted_labels, average='macro')
    return {'accuracy': np.mean(true_labels == predicted_labels), 'precision': precision, 'recall': recall,
            'f1': f1, 'kappa': cohen_kappa_score(true_labels, predicted_labels)}


def get_wf_lob_loaders(split, window=15, batch_size=64):
    """Walk-forward: all the days before `split` for training, the day itself for testing."""
    rng = np.random.default_rng(0)
    w = rng.normal(0, 1, (10,)) / np.sqrt(10)
    days = []
    for day in range(8):
        level, volatility = rng.normal(0, 2, (10, 1)), np.exp(rng.normal(0, 0.3, (10, 1)))
        shocks = rng.normal(0, 1, (10, 300 + window))
        signal = np.convolve(w @ shocks, np.ones(4) / 2, mode='full')[:300 + window]
        series = (level + volatility * shocks).astype(np.float32)
        x = np.stack([series[:, i:i + window] for i in range(300)])
        move = signal[window - 1:window - 1 + 300]
        y = np.digitize(move, [-0.45, 0.45])
        days.append((torch.from_numpy(x), torch.from_numpy(y).long()))
    train = TensorDataset(torch.cat([x for x, _ in days[:split]]), torch.cat([y for _, y in days[:split]]))
    return (DataLoader(train, batch_size=batch_size, shuffle=True),
            DataLoader(TensorDataset(*days[split]), batch_size=batch_size))


def train_evaluate_anchored(epoch_trainer=lob_epoch_trainer, evaluator=lob_evaluator, train_epochs=8,
                            splits=(6, 7), lr=0.001):
    results = []
    for i in splits:
        print("Evaluating for split: ", i)
        train_loader, test_loader = get_wf_lob_loaders(split=i)
        current_model = MLP()
        dean = current_model.dean
        optimizer = optim.RMSprop([
            {'params': current_model.base.parameters()},
            {'params': dean.mean_layer.parameters(), 'lr': lr * dean.mean_lr},
            {'params': dean.scaling_layer.parameters(), 'lr': lr * dean.scale_lr},
            {'params': dean.gating_layer.parameters(), 'lr': lr * dean.gate_lr},
        ], lr=lr)
        for epoch in range(train_epochs):
            loss = epoch_trainer(model=current_model, loader=train_loader, model_optimizer=optimizer)
            print("Epoch ", epoch, "loss: ", float(loss))
        results.append(evaluator(current_model, test_loader))
    for key in ('accuracy', 'precision', 'recall', 'f1', 'kappa'):
        print(key, '= %.4f' % np.mean([x[key] for x in results]))


if __name__ == '__main__':
    torch.manual_seed(12345)
    train_evaluate_anchored()
