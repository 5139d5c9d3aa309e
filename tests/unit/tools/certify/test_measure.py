"""Certifying: the laws hold on sound models, and each is found broken by the module that breaks it."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.errors import SettingError
from snugfit.results.verdicts import Certificate, Verdict
from snugfit.system.rounding import ADDRESSES
from snugfit.techniques import find
from snugfit.tools.certify import compare, trial
from snugfit.tools.certify.blame import ROWS_COMPARED
from snugfit.tools.certify.measure import certify
from snugfit.tools.setup import Setup, module_setup
from tests.unit.run.training.runs import points


class Mixing(nn.Module):
    """Batch statistics that nobody is told of."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows - rows.mean(0)


class Counting(nn.Module):
    """State that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += self.training
        return rows * (1 + 0.1 * self.calls)


class Warming(nn.Module):
    """State that no checkpoint holds and that moves with the optimizer's updates only: one window gives one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.seen, self.updates = 1.0, 0

    def forward(self, rows: Tensor) -> Tensor:
        if self.weight[0].item() != self.seen:
            self.seen, self.updates = self.weight[0].item(), self.updates + 1
        return rows * self.weight * (1 + self.updates)


class Drawing(nn.Module):
    """Random numbers from elsewhere than torch, in a block with weights, which is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> Tensor:
        return self.linear(rows * (random.random() + 0.5))


class Forgetful(nn.Module):
    """Computes something else when backward asks for its forward again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> Tensor:
        in_backward = torch._C._current_graph_task_id() != -1
        return self.linear(rows * (2.0 if in_backward else 1.0))


class OwnDropout(nn.Module):
    """Draws from torch's generator, without a rate by which it could be told."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows * torch.bernoulli(torch.full_like(rows, 0.5))


class InPlace(nn.Module):
    """Writes a buffer in every forward, as a statistic of a batch would."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(1)
        return rows


def net(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), *extra, nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 3)
    )


def setup(model: nn.Module, rows: int = 32, **settings) -> Setup:
    source = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(rows, 4, generator=source), torch.arange(rows) % 3)
    settings = {"global_batch": 8, "optimizer": sf.SGD(learning_rate=0.5, momentum=0.9), **settings}
    return module_setup(model, data, **settings)


def verdicts(found: Certificate) -> dict[str, str]:
    return {law.name: str(law.verdict) for law in found.laws}


def tried(model: nn.Module, **settings) -> Certificate:
    return certify(setup(model, **settings), ranks=False)


ALL_HELD = dict.fromkeys(("accumulation", "recompute", "resume", "skip"), "held")


def test_a_sound_model_holds_every_law_in_float64():
    found = tried(net())
    assert verdicts(found) == ALL_HELD and not found.broken
    assert found.dtype == "float64"
    assert 0 < found.law("accumulation").error < 1e-14  # other additions, but float64
    assert found.law("resume").error == found.law("skip").error == 0
    assert [trial.what for trial in found.law("accumulation").trials] == [
        "micro-batches of 1",
        "micro-batches of 2",
        "micro-batches of 4",
    ]


def test_the_caller_finds_everything_as_it_was():
    model = net(Drawing())
    optimizer = torch.optim.Adam(model.parameters())
    before = {name: each.clone() for name, each in model.state_dict().items()}
    random.seed(7)
    states = torch.get_rng_state(), random.getstate()
    certify(setup(model, optimizer=optimizer), ranks=False)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert not optimizer.state
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.dtype == torch.float32 and each.grad is None for each in model.parameters())
    assert model[4].p == 0.1


def test_rows_mixed_in_secret_break_accumulation_and_the_module_is_named():
    law = tried(net(Mixing())).law("accumulation")
    assert (law.verdict, law.module) == (Verdict.BROKEN, "2")
    assert "'2' (Mixing) gives a row other outputs beside other rows" in law.reasons
    assert law.error > 0.1


def test_batch_norm_is_exempt_with_its_error_and_its_reason():
    found = tried(net(nn.BatchNorm1d(8)))
    law = found.law("accumulation")
    assert law.verdict is Verdict.EXEMPT and "batch norm couples the examples" in law.reasons[0]
    assert law.module == "2" and law.error > 0.01
    assert verdicts(found) == {**ALL_HELD, "accumulation": "exempt"}


def test_random_numbers_of_torch_are_exempt_from_splits_and_hold_elsewhere():
    found = tried(net(OwnDropout()))
    assert verdicts(found) == {**ALL_HELD, "accumulation": "exempt"}
    assert found.law("accumulation").module == "2"
    assert (
        "'2' (OwnDropout) draws random numbers for each micro-batch" in found.law("accumulation").reasons[0]
    )


def test_state_that_resume_forgets_is_found_with_its_module():
    found = tried(net(Warming()))
    law = found.law("resume")
    assert (law.verdict, law.module) == (Verdict.BROKEN, "2")
    assert law.error > 1e-3 and law.bound == 0
    assert found.law("accumulation").verdict is Verdict.HELD


def test_calls_that_are_counted_break_resume_and_skip():
    found = tried(net(Counting()))
    for name in ("resume", "skip"):
        law = found.law(name)
        assert (law.verdict, law.module) == (Verdict.BROKEN, "2"), name
        assert any("the same window computed twice" in reason for reason in law.reasons)


def test_a_backward_that_recomputes_something_else_is_found_with_its_module():
    found = tried(net(Forgetful()))
    law = found.law("recompute")
    assert (law.verdict, law.module) == (Verdict.BROKEN, "2.linear")
    assert found.law("accumulation").verdict is Verdict.HELD
    assert found.law("resume").verdict is Verdict.HELD


def test_random_numbers_from_elsewhere_break_recompute():
    law = tried(net(Drawing())).law("recompute")
    assert law.verdict is Verdict.BROKEN and law.module.startswith("2")
    assert any("a generator that is not torch's" in reason for reason in law.reasons)


def test_a_buffer_that_every_forward_writes_is_put_back_when_a_window_is_skipped():
    assert verdicts(tried(net(InPlace()))) == ALL_HELD


def test_a_loss_that_compares_rows_is_exempt():
    def pairs(outputs, data):
        return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)), reduction="none")

    pairs.couples_rows = True
    law = tried(net(), loss=pairs).law("accumulation")
    assert law.verdict is Verdict.EXEMPT and law.error is None
    assert "the loss compares the rows of a window" in law.reasons[0]


@pytest.mark.parametrize("auxiliary", [False, True])
def test_a_loss_that_compares_rows_without_saying_so_is_blamed_and_not_a_module(auxiliary):
    def secret(outputs, data):
        own = nn.functional.cross_entropy(outputs, data[1], reduction="none")
        if auxiliary:  # as experts' balance: of the mean over the rows of the pass
            return own + outputs.softmax(-1).mean(0).square().sum()
        return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)), reduction="none")

    law = tried(net(), loss=secret).law("accumulation")
    assert law.verdict is Verdict.BROKEN
    assert law.reasons == (ROWS_COMPARED,) and law.module == ""


class Balanced(nn.Module):
    """Experts whose balance is a mean over rows: returned beside the rows, or kept for whoever adds it."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.router, self.scale, self.kept = nn.Linear(8, 8), nn.Parameter(torch.ones(())), kept

    def forward(self, rows):
        shares = self.router(rows).softmax(-1)
        balance = shares.mean(0).square().sum()
        self.temperature = self.scale.exp()  # a number of no row
        self.balance = [balance] if self.kept else None
        return rows * shares, None if self.kept else balance


class WithExperts(nn.Module):
    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.first, self.experts, self.last = nn.Linear(4, 8), Balanced(kept), nn.Linear(8, 3)

    def forward(self, rows):
        mixed, balance = self.experts(self.first(rows))
        return self.last(mixed), self.experts.balance[0] if self.experts.kept else balance


@pytest.mark.parametrize(("kept", "value"), [(True, "its attribute 'balance'"), (False, "an output")])
def test_an_auxiliary_loss_made_inside_a_module_is_called_what_it_is(kept, value):
    def loss(outputs, data):
        return nn.functional.cross_entropy(outputs[0], data[1], reduction="none") + outputs[1]

    law = tried(WithExperts(kept), loss=loss).law("accumulation")
    assert (law.verdict, law.module) == (Verdict.BROKEN, "experts")
    (reason,) = law.reasons
    assert reason.startswith(f"'experts' (Balanced) makes one value of all rows of a pass ({value}")


def test_windows_that_make_no_update_certify_nothing():
    data = [(torch.full((4,), math.inf), number % 3) for number in range(32)]
    found = certify(module_setup(net(), data, global_batch=8))
    for name in ("accumulation", "recompute", "ranks"):
        law = found.law(name)
        assert law.verdict is Verdict.EXEMPT and "the first window makes no update" in law.reasons[0], name


def test_recompute_is_exempt_where_there_is_nothing_to_recompute():
    law = tried(nn.Linear(4, 3)).law("recompute")
    assert law.verdict is Verdict.EXEMPT and "one module without parts" in law.reasons[0]


def test_recompute_of_the_recipe_itself_is_compared_with_none():
    law = tried(net(), techniques=[sf.Recompute()]).law("recompute")
    assert law.verdict is Verdict.HELD and law.error is not None


def test_labels_that_are_no_classes_leave_the_empty_window_untried_and_say_so():
    data = [(torch.randn(4), torch.randn(3)) for _ in range(16)]
    found = certify(module_setup(net(), data, loss="mse", global_batch=8), ranks=False)
    assert found.law("skip").verdict is Verdict.HELD
    assert found.law("skip").reasons == ("not tried: no label that counts",)


def test_a_loss_that_counts_every_label_is_not_blamed_for_learning_from_the_empty_window():
    def distance(outputs: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        return (outputs.mean(-1) - data[-1]) ** 2  # -100 is a number like any other

    found = tried(net(), loss=distance, optimizer=sf.SGD(learning_rate=1e-3))
    assert verdicts(found) == ALL_HELD
    assert found.law("skip").reasons == ("not tried: no label that counts",)


def test_a_model_whose_code_asks_for_float32_is_tried_in_float32_and_says_why():
    class Rounded(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            return nn.functional.linear(rows.float(), self.weight.float(), self.bias.float()).to(
                torch.float32
            )

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Rounded(4, 8), nn.Linear(8, 3)

        def forward(self, rows: Tensor) -> Tensor:
            return self.last(self.first(rows))

    found = tried(Own())
    assert found.dtype == "float32" and found.law("accumulation").bound == 1e-4
    assert found.law("accumulation").verdict is Verdict.HELD
    assert "the model does not compute in it" in found.conditions[0]
    with pytest.raises(SettingError, match="dtype: float64 cannot be had"):
        certify(setup(Own()), dtype="float64", ranks=False)


def test_a_module_that_rounds_by_itself_is_named_and_the_bound_is_that_of_float32():
    class Norm(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            short = rows.float()
            return (short * torch.rsqrt(short.square().mean(-1, keepdim=True) + 1e-6)).to(rows.dtype)

    found = tried(net(Norm()))
    assert found.dtype == "float64" and verdicts(found) == ALL_HELD
    assert found.law("accumulation").bound == 1e-4
    assert "'2' (Norm) rounds to float32 within float64" in found.conditions[0]


@pytest.mark.parametrize(
    ("given", "words"), [({"dtype": "int8"}, "dtype: must be one of"), ({"rows": 1}, "rows: must be")]
)
def test_what_cannot_be_tried_is_refused(given, words):
    with pytest.raises(SettingError, match=words):
        certify(setup(net()), ranks=False, **given)


def test_moments_of_a_torch_optimizer_come_along():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert verdicts(certify(setup(model, optimizer=optimizer), ranks=False)) == ALL_HELD


@pytest.mark.slow
def test_two_ranks_make_the_update_of_one_and_mixed_rows_show():
    sound = certify(setup(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))).law("ranks")
    assert sound.verdict is Verdict.HELD and sound.error < 1e-14
    mixed = certify(setup(net(Mixing()))).law("ranks")
    assert (mixed.verdict, mixed.module) == (Verdict.BROKEN, "2"), mixed.reasons


def test_ranks_that_cannot_be_had_are_not_certified():
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.left = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, rows: Tensor) -> Tensor:
            return self.used(rows)

    law = certify(setup(Unused())).law("ranks")
    assert law.verdict is Verdict.EXEMPT and law.error is None
    assert law.reasons == (
        "not certified, for want of two ranks: 2 parameters that train got no gradient, such as 'left.weight'",
    )


def test_a_certificate_comes_back_from_json():
    found = tried(net(Warming()))
    assert type(found).from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_errors_are_relative_and_a_missing_tensor_is_infinitely_wrong():
    one = {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([1e-9])}
    assert compare.relative_errors(
        {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([2e-9])}, one
    ) == pytest.approx({"w": 0.0, "b": 2e-7}, rel=0.01)  # measured by a thousandth of all: 1e-9 / 5e-3
    assert compare.relative_errors({"w": one["w"]}, one)["b"] == math.inf
    assert compare.worst_of({"w": 0.0, "b": 0.5}) == (0.5, "b")


def test_states_differ_by_path_and_not_for_a_nan():
    one = {"a": [torch.tensor([math.nan, 1.0]), 3], "b": "x"}
    assert compare.differences(one, {"a": [torch.tensor([math.nan, 1.0]), 3], "b": "x"}) == {}
    assert set(compare.differences(one, {"a": [torch.tensor([math.nan, 2.0]), 4]})) == {"/a/0", "/a/1", "/b"}


def test_products_that_depend_on_addresses_are_named_beside_the_laws(monkeypatch):
    monkeypatch.setattr("snugfit.tools.certify.measure.sums_depend_on_addresses", lambda: True)
    assert ADDRESSES in tried(net()).conditions


class LooksAtPadding(nn.Module):
    """Takes the mean of all tokens in training alone, where no check in eval mode sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens, mask = self.embedding(input_ids), attention_mask.unsqueeze(-1)
        mean = tokens.mean(1) if self.training else (tokens * mask).sum(1) / mask.sum(1)
        return self.head(mean)


def texts(rows: int = 16) -> list[dict[str, Tensor]]:
    masks = [torch.arange(6) < 1 + row % 6 for row in range(rows)]
    return [
        {"input_ids": mask * 3, "attention_mask": mask.long(), "labels": torch.tensor(row % 3)}
        for row, mask in enumerate(masks)
    ]


def test_splits_are_compared_with_and_without_cutting_padding_which_is_blamed_where_it_is_to_blame():
    settings = {"global_batch": 8, "optimizer": sf.SGD(learning_rate=0.5)}
    law = certify(module_setup(LooksAtPadding(), texts(), **settings), ranks=False).law("accumulation")
    assert law.verdict is Verdict.BROKEN and law.error > 0.01
    assert law.trials[-1].what == "micro-batches of 1, no padding cut" and law.trials[-1].error < law.bound
    assert law.reasons == ("the model computes otherwise without padding. Set plan.cut_padding: false",)
    uncut = module_setup(LooksAtPadding(), texts(), **settings, cut_padding=False)
    held = certify(uncut, ranks=False).law("accumulation")
    assert held.verdict is Verdict.HELD
    assert [trial.what for trial in held.trials if "cut" in trial.what] == []


class UnusedFirst(nn.Module):
    """Its first parameter gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.head = nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(rows)


def test_a_first_parameter_that_is_not_used_breaks_no_law():
    found = tried(UnusedFirst())
    assert found.law("skip").verdict is Verdict.HELD
    assert "an infinite gradient" in [trial.what for trial in found.law("skip").trials]


class Rotating(nn.Module):
    """A complex buffer, of which the imaginary part alone counts."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("turn", torch.tensor([1j, 2j, 3j]))

    def forward(self, rows: Tensor) -> Tensor:
        return (self.head(rows) * self.turn).imag


def test_imaginary_parts_are_neither_dropped_from_the_model_nor_from_what_is_compared():
    found = tried(Rotating())
    assert found.dtype == "float64"
    assert found.law("accumulation").error > 0, "without imaginary parts all gradients are zero"
    assert verdicts(found) == {**ALL_HELD, "recompute": verdicts(found)["recompute"]}
    one, other = {"w": torch.tensor([1 + 1j])}, {"w": torch.tensor([1 + 2j])}
    assert compare.relative_errors(one, other)["w"] == pytest.approx(1 / math.sqrt(5))


class WritesInputs(nn.Module):
    """Doubles its inputs in place."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.mul_(2.0)


def test_inputs_changed_in_place_break_no_law():
    found = tried(nn.Sequential(WritesInputs(), *net()), techniques=[find("sam")()])
    assert verdicts(found) == ALL_HELD


def test_on_a_device_without_float64_laws_are_tried_in_float32_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "NO_FLOAT64", frozenset({"cpu"}))
    certificate = sf.certify(nn.Linear(2, 3), points(32), optimizer=sf.SGD(learning_rate=0.1), global_batch=8)
    assert certificate.dtype == "float32"
    assert any("below the bound: cpu has none" in condition for condition in certificate.conditions)
    with pytest.raises(SettingError, match="^dtype: float64 cannot be had: cpu has none"):
        sf.certify(
            nn.Linear(2, 3), points(32), optimizer=sf.SGD(learning_rate=0.1), global_batch=8, dtype="float64"
        )
