"""Age and expression from one picture: a pretrained trunk that is frozen at first, a head for each task."""
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPRESSIONS = 4


def faces(count, seed):
    gen = torch.Generator().manual_seed(seed)
    age = 5 + 75 * torch.rand(count, generator=gen)
    expression = torch.randint(0, EXPRESSIONS, (count,), generator=gen)
    tilt = torch.rand(count, generator=gen)
    grid = torch.linspace(-1, 1, 14)
    mouth = torch.tensor([-0.8, -0.2, 0.3, 0.9])[expression][:, None, None] * grid[None, None] ** 2
    lines = torch.sin(12 * grid)[None, :, None] * (age / 80)[:, None, None]
    image = torch.exp(-4 * (grid[None, :, None] - 0.4 + mouth) ** 2) + 0.8 * lines + 0.4 * tilt[:, None, None] * grid[None, None]
    image = image.unsqueeze(1) + 0.2 * torch.randn(count, 1, 14, 14, generator=gen)
    return image, age, expression, tilt


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = Trunk()
        self.age_head = nn.Linear(512, 1)
        self.expression_head = nn.Linear(512, EXPRESSIONS)

    def forward(self, x):
        h = self.trunk(x)
        return self.age_head(h).squeeze(1), self.expression_head(h)


def pretrain(path):
    """The trunk learns the tilt of the head, as it would from another data set."""
    images, _, _, tilt = faces(512, 3)
    trunk, head = Trunk(), nn.Linear(512, 1)
    optimizer = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=2e-3)
    for index in torch.randperm(len(images)).split(64):
        loss = F.mse_loss(head(trunk(images[index])).squeeze(1), tilt[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(trunk.state_dict(), path)


@torch.no_grad()
def validate(model, data, mean, std):
    model.eval()
    age, expression = model(data[0])
    mae = (age * std + mean - data[1]).abs().mean().item()
    return mae, (expression.argmax(1) == data[2]).float().mean().item()


def main():
    torch.manual_seed(23)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trunk.pt"
        pretrain(path)
        model = MultiTask()
        model.trunk.load_state_dict(torch.load(path, weights_only=True))
    images, age, expression, _ = faces(640, 1)
    val = faces(160, 2)
    mean, std = age.mean(), age.std()
    target_age = (age - mean) / std

    for p in model.trunk.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(model.age_head.parameters(), lr=2e-3)
    expression_optimizer = torch.optim.Adam(model.expression_head.parameters(), lr=2e-3)
    for epoch in range(4):
        if epoch == 1:
            for p in model.trunk.parameters():
                p.requires_grad = True
            optimizer.add_param_group({"params": model.trunk.parameters(), "lr": 2e-3})
        model.train()
        for index in torch.randperm(len(images)).split(64):
            predicted_age, scores = model(images[index])
            loss_age = F.smooth_l1_loss(predicted_age, target_age[index])
            loss_expression = F.cross_entropy(scores, expression[index])
            loss = loss_age + loss_expression
            optimizer.zero_grad()
            expression_optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expression_optimizer.step()
        mae, accuracy = validate(model, val, mean, std)
        print(f"epoch {epoch} age {loss_age.item():.3f} expression {loss_expression.item():.3f} MAE {mae:.2f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
