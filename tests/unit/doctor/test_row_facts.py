"""What is read off batches and sources: digests of rows, mixes of them, names that a loop leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from snugfit.doctor.observe.graphs.loss_graph import sum_beside_mean
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.source.overwritten_names import read_after_loop
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.rows.mixed_rows import mix_of, wrong_targets
from snugfit.doctor.observe.watchers.rows.row_digests import Rows, row_digests


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.uint8]
)
def test_rows_have_the_same_digest_where_they_are_the_same_and_another_where_one_value_differs(
    dtype: torch.dtype,
) -> None:
    rows = torch.randint(0, 100, (16, 12), generator=torch.Generator().manual_seed(0)).to(dtype)
    digests = row_digests(rows)
    assert len(set(digests)) == 16 and row_digests(rows[[3, 5]]) == [digests[3], digests[5]]
    other = rows.clone()
    other[:, 4] += 1
    assert not set(row_digests(other)) & set(digests)


def test_a_batch_without_rows_has_nothing_to_tell() -> None:
    rows = Rows()
    rows.forward(1, torch.zeros(0, 8), "", grad=True, place=0)
    rows.backward()
    assert rows.first == []


@pytest.mark.parametrize("both", [True, False])
def test_pieces_that_are_drawn_for_two_parts_on_one_line_are_told_from_those_of_one_pool(both: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    pool, others = torch.randn(2, 400, 8, generator=generator)
    others[:40] = pool[:40]  # what repeats itself is in both parts
    rows = Rows()

    def drawn(data: torch.Tensor, *, grad: bool) -> None:
        at = torch.randint(400, (8,), generator=generator)
        rows.forward(1, data[at], "train.py:9", grad=grad, place=0)

    for _ in range(3):
        for _ in range(20):
            drawn(pool, grad=True)
            rows.backward()
        for part in (pool, others) if both else (pool, pool):
            for _ in range(6):
                drawn(part, grad=False)
    (overlap,) = rows.overlaps()
    assert overlap.drawn and overlap.apart == both


@pytest.mark.parametrize(
    ("beside", "apart"), [("another graph", True), ("half of both", False), ("half of it", False)]
)
def test_a_graph_that_is_scored_whole_leaks_nothing_whatever_is_scored_beside_it(
    beside: str, apart: bool
) -> None:
    graph, another = torch.randn(2, 300, 9)
    rows = Rows()
    for _ in range(3):
        rows.forward(1, graph, "train.py:9", grad=True, place=0)
        rows.backward()
        rows.forward(1, graph, "train.py:12", grad=False, place=0)
    other = {
        "another graph": another,
        "half of both": torch.cat([graph[:50], another[:50]]),
        "half of it": graph[:50],
    }
    rows.forward(1, other[beside], "train.py:15", grad=False, place=0)
    (overlap,) = rows.overlaps()
    assert overlap.apart == apart


def test_padding_at_the_end_of_whole_numbers_does_not_count_and_rows_without_anything_have_no_digest() -> (
    None
):
    tokens = torch.tensor([[5, 6, 7, 8, 0], [5, 6, 7, 0, 8]])
    longer = torch.nn.functional.pad(tokens[:1], (0, 4))
    assert row_digests(longer) == row_digests(tokens)[:1] != row_digests(tokens)[1:]
    assert row_digests(torch.zeros(3, 9)) == row_digests(torch.tensor([[1, 1, 2, 2, 1]])) == []


@pytest.mark.parametrize(("order", "wrong"), [(0, 0), (1, 30)])
def test_targets_are_wrong_where_they_were_mixed_with_those_of_other_rows(order: int, wrong: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, targets = torch.randn(40, 6, generator=generator), torch.randn(40, 1, generator=generator)
    orders = [torch.randperm(40, generator=generator) for _ in range(2)]
    mix = mix_of(rows, 0.7 * rows + 0.3 * rows[orders[0]])
    assert mix is not None and torch.equal(mix.partners, orders[0])
    found = wrong_targets(mix, targets, 0.7 * targets + 0.3 * targets[orders[order]])
    assert found is not None and ((found == 0) if not wrong else (found >= wrong))
    assert mix_of(rows, rows + 0.1 * torch.randn(40, 6, generator=generator)) is None


@pytest.mark.parametrize("columns", [1, 9])
def test_rows_in_another_order_and_noise_on_one_column_are_no_mix(columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(64, columns, generator=generator)
    assert mix_of(rows, rows[torch.randperm(64, generator=generator)]) is None
    assert mix_of(rows, rows + 0.05 * torch.randn(64, columns, generator=generator)) is None


def test_targets_of_another_kind_that_were_kept_or_that_are_one_term_of_two_are_not_wrong() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, order = torch.randn(64, 9, generator=generator), torch.randperm(64, generator=generator)
    mix = mix_of(rows, 0.7 * rows + 0.3 * rows[order])
    labels, numbers = torch.arange(64) % 7, torch.rand(64, 1, generator=generator)
    assert mix is not None
    for targets in (labels, numbers, numbers.round()):
        assert [wrong_targets(mix, targets, each) for each in (targets, targets[order])] == [0, 0]
    other_kinds = ((labels, (labels == labels[order]).long()), (labels, numbers), (numbers, numbers.square()))
    assert [wrong_targets(mix, *each) for each in other_kinds] == [None, None, None]


def test_numbers_of_64_bits_that_are_whole_have_digests_of_their_own() -> None:
    rows = (torch.rand(2000, 40, generator=torch.Generator().manual_seed(0)) > 0.5).double()
    assert len(set(row_digests(rows))) == len(torch.unique(rows, dim=0)) == 2000


def test_modules_of_a_compiled_script_are_seen() -> None:
    scripted = torch.jit.script(torch.nn.Linear(2, 2))
    assert ModuleWatch._unwrapped(scripted) is scripted


def test_no_batch_is_held_behind_the_first_updates() -> None:
    modules = ModuleWatch(Recorder(8, None, None))
    modules.drawn, modules.recorder.detailed = [torch.zeros(4)], False
    modules.stepped(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))]))
    assert modules.drawn == []


def test_a_worker_that_was_forked_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: "one of two")
    recorder = Recorder(8, None, None)
    assert recorder.active
    recorder.after_fork()
    assert not recorder.active


@pytest.mark.parametrize(
    ("body", "after", "found"),
    [
        ("loss = f(x)", "print(loss)", ("loss", 3)),
        ("loss = f(x); total += loss", "print(loss)", None),
        ("loss = f(x)", "loss = 0", None),
        ("loss = f(x)", "print(x)", None),
        ("losses.append(f(x))", "print(losses)", None),
        ("loss = sum(f(y) for y in x)", "print(loss)", None),
    ],
)
def test_a_name_is_left_behind_by_a_loop_that_does_not_read_it(
    tmp_path: Path, body: str, after: str, found: tuple[str, int] | None
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"for x in rows:\n    {body}\n{after}\n")
    assert read_after_loop(str(script), 2) == found


@pytest.mark.parametrize(
    ("part", "factor"),
    [
        ("sum", 2.0),
        ("function", 1.0),
        ("small", None),
        ("rows", None),
        ("weights", None),
        ("mean", None),
        ("weighted", None),
        ("masked", 1.0),
    ],
)
def test_a_sum_over_the_rows_is_told_beside_a_mean(part: str, factor: float | None) -> None:
    layer = torch.nn.Linear(16, 16)
    hidden = layer(torch.randn(16, 16))
    parts = {
        "sum": 2 * hidden.square().sum(),
        "function": torch.nn.functional.l1_loss(hidden, torch.ones(16, 16), reduction="sum"),
        "small": 1e-3 * hidden.square().sum(),
        "rows": hidden.square().sum() / 16 / 16,
        "weights": layer.weight.square().sum(),
        "mean": hidden.abs().mean(),
        "weighted": (torch.full((16,), 1 / 16) * hidden.square().mean(1)).sum(),
        "masked": (hidden.square().sum(1) * 2 * (torch.arange(16) < 8)).sum(),
    }
    summed = sum_beside_mean(torch.nn.functional.mse_loss(hidden, torch.zeros(16, 16)) + parts[part], 16)
    assert (summed and summed.factor) == factor


def test_the_scale_of_a_loss_says_nothing_of_its_terms() -> None:
    hidden = torch.nn.Linear(16, 16)(torch.randn(16, 16))
    loss = torch.nn.functional.mse_loss(hidden, torch.zeros(16, 16)) + 1e-3 * hidden.square().sum()
    assert sum_beside_mean(2.0**16 * loss, 16, 2.0**16) is None


@pytest.mark.parametrize(
    ("few", "coarse", "least"), [(True, True, 0.6), (False, True, 0.0), (True, False, 0.0)]
)
def test_how_often_rows_of_one_pass_are_again_other_rows_of_the_data_is_known(
    few: bool, coarse: bool, least: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(400, 30, generator=generator)
    data = (data > 0).float() if coarse else data  # of numbers that hardly meet, those that do were copied
    data = data[torch.randint(300, (400,), generator=generator)] if few else data
    rows = Rows()
    for _ in range(2):
        rows.loader = 5
        for batch in data.split(20):
            rows.forward(1, batch, "train.py:9", grad=True, place=0)
            rows.backward()
        rows.repeats.close(5)
    rows.loader = 6
    rows.forward(1, data[:20], "train.py:19", grad=False, place=0)
    (overlap,) = rows.overlaps()
    assert least <= overlap.repeated <= 1.5 * least


@pytest.mark.parametrize("few", [True, False])
def test_a_text_repeats_itself_where_one_beginning_goes_on_in_several_ways(few: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    phrases = torch.randint(1000, (6 if few else 400, 8), generator=generator)
    text = phrases[torch.randint(len(phrases), (400,), generator=generator) if few else torch.arange(400)]
    rows = Rows()
    for _ in range(40):
        starts = torch.randint(3000, (16,), generator=generator).tolist()
        pieces = torch.stack([text.flatten()[start : start + 16] for start in starts])
        rows.forward(1, pieces, "train.py:9", grad=True, place=0)
        rows.backward()
    assert rows.repeats.share(1) == 0 if not few else rows.repeats.share(1) > 0.5
