"""Axes that a layer's results lie on until a loss takes them, padding that all rows of a batch have, and edges of graphs that are joined: each fault in several ways, beside what looks alike and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_rows_signs_places import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

SOUNDS = """
net, head = nn.Sequential(nn.Conv1d(1, 8, 5), nn.ReLU()), nn.Linear(8, 4)
optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-3)
"""
WAVES = "x, y = torch.randn(24, 1, 40), torch.arange(24) % 4\nh = net(x)\n"


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("s = F.log_softmax(head(h.mean(2, keepdim=True).transpose(1, 2)), dim=1)  # cause\nloss = F.nll_loss(s.squeeze(1), y)", "wrong_axis"),
        ("s = head(h.amax(-1)[:, None]).log_softmax(1)  # cause\nloss = F.nll_loss(s.squeeze(), y)", "wrong_axis"),
        ("s = nn.LogSoftmax(dim=1)(head(h.mT[:, :1]))  # cause\nloss = F.nll_loss(s.flatten(0, 1), y)", "wrong_axis"),
        ("s = torch.log_softmax(head(h.mean(2))[..., None], 2)  # cause\nloss = F.nll_loss(s.squeeze(2), y)", "wrong_axis"),
        ("s = F.log_softmax(head(h.mean(2, keepdim=True).transpose(1, 2)), dim=2)\nloss = F.nll_loss(s.squeeze(1), y)", ""),
        ("s = head(h.amax(-1)[:, None]).squeeze(1).log_softmax(1)\nloss = F.nll_loss(s, y)", ""),
        ("w = h.mean(1, keepdim=True).softmax(2)\nloss = F.cross_entropy(head((h * w).sum(2, keepdim=True).transpose(1, 2)).squeeze(1), y)", ""),
        ("w = h.mean((1, 2))[:, None].softmax(1)  # of a single expert\nloss = F.cross_entropy(head(h.mean(2)) * w, y)", ""),
    ],
)  # fmt: skip
def test_a_softmax_over_an_axis_that_is_taken_away_is_none_over_the_classes(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    told(tmp_path, SOUNDS + looped(WAVES + loss), pitfall)


CELLS = """
net = nn.Conv2d(3, 4 * 3, 3, padding=1)   # three classes for each of four boxes that a cell may have
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""
PLATES = "x, y = torch.randn(8, 3, 5, 5), torch.randint(0, 3, (8, 100))\n"


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("s = net(x).reshape(8, -1, 3)  # cause\nloss = F.cross_entropy(s.transpose(1, 2), y)", "wrong_axis"),
        ("s = net(x).view(-1, 3)  # cause\nloss = F.cross_entropy(s, y.flatten())", "wrong_axis"),
        ("s = (0.5 * net(x)).flatten(1).unflatten(1, (-1, 3))  # cause\nloss = F.cross_entropy(s.mT, y)", "wrong_axis"),
        ("s = torch.reshape(net(x), (8, 100, 3)).log_softmax(-1)  # cause\nloss = F.nll_loss(s.permute(0, 2, 1), y)", "wrong_axis"),
        ("s = net(x).permute(0, 2, 3, 1).reshape(8, -1, 3)\nloss = F.cross_entropy(s.transpose(1, 2), y)", ""),
        ("s = net(x).view(8, 4, 3, 25).transpose(2, 3)\nloss = F.cross_entropy(s.reshape(-1, 3), y.flatten())", ""),
        ("s = net(x).reshape(8 * 4, 3, 25)\nloss = F.cross_entropy(s, y.reshape(32, 25))", ""),
        ("s = net(x).unflatten(1, (4, 3)).movedim(2, 1).flatten(2)\nloss = F.cross_entropy(s, y)", ""),
        ("s = net(x)[..., 1:4, 1:4].reshape(8, 4, 3, 9).transpose(2, 3)  # of the inner cells\nloss = F.cross_entropy(s.reshape(-1, 3), y[:, :36].flatten())", ""),
        ("s = net(x).flatten(2).flatten(0, 1)  # the cell of each of twelve points\nloss = F.cross_entropy(s, torch.randint(0, 25, (96,)))", ""),
    ],
)  # fmt: skip
def test_classes_of_several_boxes_are_channels_and_no_neighbouring_cells(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    told(tmp_path, CELLS + looped(PLATES + loss), pitfall)


TOKENS = """
from transformers import BertConfig, BertForTokenClassification, DistilBertConfig, DistilBertForSequenceClassification
small = dict(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16)
tagger = BertForTokenClassification(BertConfig(**small, num_labels=3))
sorter = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=60, dim=16, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=16))
optimizer = torch.optim.Adam([*tagger.parameters(), *sorter.parameters()], lr=1e-3)
def batch(least, most, width=12):
    lengths = torch.randint(least, most + 1, (16,))
    lengths[:2] = torch.tensor([least, most])
    ids = torch.randint(1, 60, (16, width))
    ids[torch.arange(width) >= lengths[:, None]] = 0
    return ids, (ids != 0).long(), torch.where(ids > 0, ids % 3, -100)
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("ids, mask, tags = batch(3, 9)\nloss = tagger(ids, labels=tags).loss  # cause", "unmasked_padding"),
        ("ids, mask, tags = batch(3, 12)\nloss = tagger(input_ids=ids, labels=tags).loss  # cause", "unmasked_padding"),
        ("ids, mask, tags = batch(2, 8)\nloss = sorter(ids, torch.ones_like(ids), labels=ids[:, 0] % 2).loss  # cause", "unmasked_padding"),
        ("ids, mask, tags = batch(4, 10)\ns = tagger.bert(ids)[0][:, 0]  # cause\nloss = F.cross_entropy(tagger.classifier(s), ids[:, 1] % 3)", "unmasked_padding"),
        ("ids, mask, tags = batch(3, 9)\nloss = tagger(ids, mask, labels=tags).loss", ""),
        # of one length each, no row ends in padding, or all in the same
        ("ids, mask, tags = batch(12, 12)\nloss = tagger(ids, labels=tags).loss", ""),
        ("ids, mask, tags = batch(12, 12)\nids[torch.rand(16, 12) < 0.1] = 0\nloss = tagger(ids, labels=ids % 3).loss", ""),
    ],
)  # fmt: skip
def test_padding_to_a_length_that_no_row_has_is_padding(tmp_path: Path, loss: str, pitfall: str) -> None:
    told(tmp_path, TOKENS + looped(loss), pitfall)


JOINED = """
def graph():
    n = int(torch.randint(4, 8, ()))
    ring = torch.stack((torch.arange(n), torch.arange(n).roll(1)))
    edges = torch.cat([ring, ring.flip(0)], 1)
    return torch.randint(0, 4, (n,)), edges, torch.randn(())
graphs = []
for _ in range(96):
    nodes, edges, value = graph()
    graphs.append((nodes, edges, value))
def join(rows):
    kinds, edges, owners, before = [], [], [], 0
    for number, (nodes, pairs, _) in enumerate(rows):
        kinds.append(nodes)
        {joins}
        owners.append(torch.full((len(nodes),), number))
        before += len(nodes)
    return torch.cat(kinds), {edges}, torch.cat(owners), torch.stack([value for *_, value in rows])
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind, self.layer, self.out = nn.Embedding(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)
    def forward(self, kinds, edges, owners):
        h = self.kind(kinds)
        h = torch.relu(self.layer(h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])))
        return self.out(torch.zeros(int(owners[-1]) + 1, 8).index_add(0, owners, h)).squeeze(1)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for kinds, edges, owners, values in DataLoader(graphs, 16, shuffle=True, collate_fn=join):
    loss = F.mse_loss(net(kinds, edges, owners), values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("joins", "edges", "pitfall"),
    [
        ("edges.append(pairs)  # cause", "torch.cat(edges, 1)", "mismatched_rows"),
        ("edges.extend(pairs.t())  # cause", "torch.stack(edges).t()", "mismatched_rows"),
        ("edges = torch.hstack([edge for _, edge, _ in rows])  # cause", "edges", "mismatched_rows"),
        ("edges.append(pairs + before)", "torch.cat(edges, 1)", ""),
        ("edges.append(pairs.add(before))", "torch.cat(edges, 1)", ""),
    ],
)  # fmt: skip
def test_edges_count_the_nodes_of_the_graphs_before_theirs_whatever_nodes_are(
    tmp_path: Path, joins: str, edges: str, pitfall: str
) -> None:
    told(tmp_path, JOINED.format(joins=joins, edges=edges), pitfall)
