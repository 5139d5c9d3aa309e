"""Layers that lie in a list or dictionary of Python's, of which a model knows nothing, beside lists that are no fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

LISTED = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
    def forward(self, x):
        return x + self.inner(x).tanh()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {made}
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        {used}
        return self.head(x)
net = Net()
optimizer = torch.optim.Adam({parameters}, 1e-2)
for update in range(8):
    x = torch.randn(24, 8)
    loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
IN_TURN = "for each in self.blocks: x = each(x)"


@pytest.mark.parametrize(
    ("made", "used", "parameters", "pitfall"),
    [
        ("self.blocks = [Block(8) for _ in range(3)]  # cause", IN_TURN, "net.parameters()", "not_in_optimizer"),
        ("self.blocks = []  # cause\n        for _ in range(2): self.blocks.append(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))", IN_TURN, "net.parameters()", "not_in_optimizer"),
        ("self.ways = {'a': nn.Linear(8, 8), 'b': Block(8)}  # cause", "x = self.ways['a'](x) + self.ways['b'](x)", "[w for w in net.parameters() if w.requires_grad]", "not_in_optimizer"),
        ("self.pair = nn.Linear(8, 8), nn.Linear(8, 8)  # cause", "x = self.pair[1](self.pair[0](x).relu())", "net.parameters()", "not_in_optimizer"),
        ("self.blocks = nn.ModuleList([Block(8) for _ in range(3)])", IN_TURN, "net.parameters()", ""),
        ("self.blocks = [Block(8) for _ in range(3)]\n        for k, each in enumerate(self.blocks): self.add_module(f'b{k}', each)", IN_TURN, "net.parameters()", ""),
        ("self.blocks = [Block(8) for _ in range(3)]", IN_TURN, "[*net.parameters(), *(w for each in net.blocks for w in each.parameters())]", ""),
        ("self.blocks = [Block(8).requires_grad_(False)]", IN_TURN, "net.parameters()", ""),
    ],
)  # fmt: skip
def test_layers_in_a_plain_list_are_said_where_the_list_is_made(
    tmp_path: Path, made: str, used: str, parameters: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, LISTED.format(made=made, used=used, parameters=parameters), pitfall, monkeypatch)
