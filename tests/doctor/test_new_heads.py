"""Heads that are made for a network which has learned before: frozen as they were drawn in several ways, beside those that train, and frozen ones that have learned."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.doctor.test_rows_signs_places import told

pytestmark = pytest.mark.slow

NETWORK = """
class Net(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.low, self.norm, self.mid, self.head = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, classes)
        self.prompt = nn.Parameter(torch.zeros(6))
    def forward(self, x):
        return self.head(torch.tanh(self.mid(self.norm(torch.relu(self.low(x + self.prompt))))))
class Low(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.a, self.b = nn.Parameter(0.1 * torch.randn(rank, base.in_features)), nn.Parameter(torch.zeros(base.out_features, rank))
    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()
def fit(net, parameters, updates=10):
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for _ in range(updates):
        x = torch.randn(24, 6)
        loss = F.cross_entropy(net(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net = Net()
"""
LEARNED = "fit(net, net.parameters())\n"
LOADED = "net.load_state_dict({key: value.clone() for key, value in Net().state_dict().items()})\n"


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        (LEARNED + """
        net.head = nn.Linear(16, 2)  # cause
        net.requires_grad_(False)
        net.mid = Low(net.mid)
        fit(net, [net.mid.a, net.mid.b])
        """, "not_in_optimizer"),
        (LOADED + """
        net.head = nn.Linear(16, 2)  # cause
        for each in net.parameters():
            each.requires_grad = False
        net.prompt.requires_grad = True
        fit(net, [net.prompt])
        """, "not_in_optimizer"),
        (LEARNED + """
        body = nn.Sequential(net.low, net.norm, net.mid)
        net = nn.Sequential(body, nn.Linear(16, 2))  # cause
        for name, each in net.named_parameters():
            each.requires_grad_("0.1" in name)
        fit(net, filter(lambda each: each.requires_grad, net.parameters()))
        """, "not_in_optimizer"),
        (LOADED + """
        def with_head(net, classes):
            head = nn.Linear(net.head.in_features, classes, bias=False)  # cause
            setattr(net, "head", head)
            return net
        net = with_head(net, 2)
        for each in net.parameters():
            each.requires_grad = each.dim() == 1   # biases and norms alone
        fit(net, [each for each in net.parameters() if each.requires_grad])
        """, "not_in_optimizer"),
        # what is loaded behind it is the network alone
        (LOADED + """
        learned = {key: value for key, value in net.state_dict().items() if "head" not in key}
        net = Net()
        net.head = nn.Linear(16, 2)  # cause
        net.load_state_dict(learned, strict=False)
        net.requires_grad_(False)
        net.mid = Low(net.mid)
        fit(net, [net.mid.a, net.mid.b])
        """, "not_in_optimizer"),
        (LEARNED + """
        net.requires_grad_(False)
        net.mid, net.head = Low(net.mid), nn.Linear(16, 2)
        fit(net, [each for each in net.parameters() if each.requires_grad])
        """, ""),
        # the head that has learned is frozen with the rest
        (LEARNED + """
        net.requires_grad_(False)
        net.mid = Low(net.mid)
        fit(net, [net.mid.a, net.mid.b])
        """, ""),
        # it learns first, and is frozen afterwards
        (LOADED + """
        net.head = nn.Linear(16, 2)
        net.requires_grad_(False)
        net.head.requires_grad_(True)
        fit(net, net.head.parameters())
        net.requires_grad_(False)
        net.prompt.requires_grad_(True)
        fit(net, [net.prompt])
        """, ""),
        # its weights are put in by hand, or loaded
        (LOADED + """
        net.head = nn.Linear(16, 2)
        with torch.no_grad():
            net.head.weight.copy_(torch.eye(2).repeat_interleave(8, 1) / 8)
        net.requires_grad_(False)
        net.prompt.requires_grad_(True)
        fit(net, [net.prompt])
        """, ""),
        (LEARNED + """
        net.head = nn.Linear(16, 2)
        net.head.weight.data.copy_(torch.eye(2).repeat_interleave(8, 1) / 8)
        net.requires_grad_(False)
        net.mid = Low(net.mid)
        fit(net, [net.mid.a, net.mid.b])
        """, ""),
        (LOADED + """
        net.head = nn.Linear(16, 2)
        net.head.weight.data = torch.eye(2).repeat_interleave(8, 1) / 8
        net.requires_grad_(False)
        net.prompt.requires_grad_(True)
        fit(net, [net.prompt])
        """, ""),
        (LEARNED + """
        state = {key: value.clone() for key, value in net.state_dict().items()}
        net = Net()
        net.load_state_dict(state)
        net.requires_grad_(False)
        net.prompt.requires_grad_(True)
        fit(net, [net.prompt])
        """, ""),
        # a classifier that is fixed from the beginning
        ("net.head.requires_grad_(False)\n" + """
        fit(net, [each for each in net.parameters() if each.requires_grad])
        """, ""),
        # what nothing learns through: random numbers of a fixed network, which another is to foretell
        (LEARNED + """
        fixed = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).requires_grad_(False)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(10):
            x = torch.randn(24, 6)
            loss = F.mse_loss(net(x)[:, :2], fixed(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """, ""),
        # it waits for what is below it, in an optimizer of both
        (LEARNED + """
        net.head = nn.Linear(16, 2)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for update in range(14):
            net.head.requires_grad_(update >= 7)
            x = torch.randn(24, 6)
            loss = F.cross_entropy(net(x), (x.sum(1) > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """, ""),
        # it is stepped by hand, after more passes than one
        (LOADED + """
        net.head = nn.Linear(16, 2)
        for _ in range(10):
            for _ in range(5):
                x = torch.randn(24, 6)
                (F.cross_entropy(net(x), (x.sum(1) > 0).long()) / 5).backward()
            with torch.no_grad():
                for each in net.parameters():
                    each -= 0.1 * each.grad
                    each.grad = None
        """, ""),
        # a random map that is no last layer
        (LEARNED + """
        net.head = nn.Sequential(nn.Linear(16, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 2))
        fit(net, [each for each in net.parameters() if each.requires_grad])
        """, ""),
    ],
)  # fmt: skip
def test_a_new_head_learns_with_what_is_trained_below_it(tmp_path: Path, text: str, pitfall: str) -> None:
    begin, _, rest = text.partition("\n")
    told(tmp_path, NETWORK + begin + "\n" + dedent(rest), pitfall)
