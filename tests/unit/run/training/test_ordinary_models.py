"""Ordinary models of all kinds: each is cut, stopped, resumed, scored and delivered as any other."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from snugfit.core.losses import cross_entropy
from snugfit.core.technique import Technique
from snugfit.core.tree import leaves
from snugfit.errors import SettingError
from snugfit.models.bundle import load_bundle
from snugfit.results.verdicts import Verdict
from snugfit.run.from_python import train
from snugfit.run.training.loop import Training
from snugfit.step.step import Step
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.placement.recompute import Recompute
from snugfit.tools.certify.door import certify
from snugfit.tools.preserved_step import preserved
from tests.unit.run.training import ordinary
from tests.unit.run.training.architectures import ARCHITECTURES
from tests.unit.run.training.ordinary import Case
from tests.unit.run.training.runs import finish, make_training, resumed, stop_at, told

CASES = {**ordinary.CASES, **ARCHITECTURES}
NAMES = list(ordinary.CASES)
FEW = {"batch_encoding", "buffers_in_blocks", "packed_sequences", "compiled", "t5"}
"""One of each kind: for what is done with a run's files and its micro-batch all of a kind are alike."""


def slowly(names: Iterable[str]) -> list[Any]:
    """Return the names, of which only the few of each kind are of quick tests."""
    return [each if each in FEW else pytest.param(each, marks=pytest.mark.slow) for each in names]


WITHOUT_FLOATS = {"t5", "bart", "vit"}
"""Cases whose inputs are no numbers that could be NaN, or take long."""


def window_of(case: Case, rows: list[Any]) -> Any:
    return (case.collate or default_collate)(rows)


def step_of(case: Case, micro_batch: int | None = None, techniques: Sequence[Technique] = ()) -> Step:
    return Step(
        case.model(),
        AdamW(learning_rate=0.01),
        case.loss,
        techniques,
        micro_batch=micro_batch,
        forward=case.forward,
        total_updates=10,
    )


def run_of(case: Case, folder: Path, **settings: Any) -> Training:
    rows = case.rows()
    return make_training(
        folder,
        model=case.model(),
        train=rows,
        validation=rows[:5],
        loss=case.loss,
        collate=case.collate,
        forward=case.forward,
        techniques=(AdamW(learning_rate=0.01), EMA(decay=0.5)),
        **{"global_batch": 4, "epochs": 2.0, "checkpoint_every": 1, **settings},
    )


def state_of(step: Step) -> list[Tensor]:
    return [leaf.clone() for leaf in leaves(step.state_dict())]


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].splits])
def test_micro_batches_give_the_update_of_the_whole_window(name: str) -> None:
    case = CASES[name]
    whole, cut = step_of(case), step_of(case, micro_batch=2)
    for module in [*whole.model.modules(), *cut.model.modules()]:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    rows = case.rows()
    for start in (0, 4, 7):
        batch = window_of(case, rows[start : start + 4])
        results = whole(copy.deepcopy(batch)), cut(copy.deepcopy(batch))
        assert all(result.applied for result in results)
        assert results[0].loss == pytest.approx(results[1].loss, rel=case.rounding)
    assert cut.largest == 2
    for one, other in zip(whole.parameters, cut.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=100 * case.rounding)


@pytest.mark.slow
@pytest.mark.parametrize("name", slowly(CASES))
def test_a_run_goes_on_from_the_files_of_a_checkpoint_bit_for_bit(name: str, tmp_path: Path) -> None:
    unbroken = run_of(CASES[name], tmp_path / "unbroken")
    finish(unbroken)
    stop_at(run_of(CASES[name], tmp_path / "stopped"), windows=4)
    again = resumed(run_of(CASES[name], tmp_path / "stopped"))
    finish(again)
    one, other = unbroken.step.state_dict(), again.step.state_dict()
    assert list(one) == list(other)
    for mine, its in zip(leaves(one), leaves(other), strict=True):
        assert torch.equal(mine, its)
    assert repr(one.get("modules")) == repr(other.get("modules"))
    assert told(again)[-1] == told(unbroken)[-1]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_FLOATS])
def test_a_window_that_is_not_finite_changes_nothing(name: str) -> None:
    case = CASES[name]
    rows = case.rows()
    for begun in (False, True):
        step, never = step_of(case, micro_batch=3), step_of(case, micro_batch=3)
        for each in (step, never):
            if begun:
                each(window_of(case, rows[:4]))
        assert not step(window_of(case, [*rows[:3], case.poison(rows[3])])).applied
        never.progress.consume(4, applied=False)
        for window in (rows[4:8], rows[6:10]):
            assert step(window_of(case, window)).loss == never(window_of(case, window)).loss
        for mine, its in zip(leaves(step.state_dict()), leaves(never.state_dict()), strict=True):
            assert torch.equal(mine, its)
        assert repr(step.state_dict().get("modules")) == repr(never.state_dict().get("modules"))


@pytest.mark.parametrize("name", slowly(CASES))
def test_the_best_model_loads_strictly_into_the_plain_module(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    training = run_of(case, tmp_path, epochs=1.0)
    finish(training)
    plain = (case.plain or case.make)().double()
    loaded, _, _ = load_bundle(tmp_path / "best", model=plain)
    with training.step.averaged():
        expected = {
            key: value.clone()
            for key, value in training.step.model.state_dict().items()
            if isinstance(value, Tensor)
        }
    found = {key: value for key, value in loaded.state_dict().items() if isinstance(value, Tensor)}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", slowly(NAMES))
def test_the_micro_batch_is_found_and_leaves_no_trace(name: str, tmp_path: Path) -> None:
    tried, given = (
        run_of(CASES[name], tmp_path / "auto", epochs=1.0),
        run_of(CASES[name], tmp_path / "4", epochs=1.0),
    )
    tried.planned = "auto"
    tried.fit()
    assert tried.step.micro_batch == 4
    given.step.micro_batch = 4
    for training in (tried, given):
        finish(training)
    for mine, its in zip(leaves(tried.step.state_dict()), leaves(given.step.state_dict()), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_model_that_writes_gets_what_it_writes_from_the_labels(name: str) -> None:
    case = CASES[name]
    window = window_of(case, case.rows()[:4])
    expected = case.model().train()(**window).loss
    assert step_of(case)(window).loss == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("make", [ordinary.compiled, ordinary.PartlyCompiled])
def test_a_compiled_model_runs_compiled_under_plain_names(make: Any) -> None:
    calls: list[int] = []

    def counting(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            calls.append(1)
            return graph.forward(*args)

        return run

    model = ordinary.Named() if make is ordinary.compiled else ordinary.PartlyCompiled(False)
    torch._dynamo.reset()
    if make is ordinary.compiled:
        wrapped: Any = torch.compile(model, backend=counting)
    else:
        model.encoder = torch.compile(model.encoder, backend=counting)
        wrapped = model
    step = Step(wrapped, AdamW(learning_rate=0.01))
    assert not any("_orig_mod" in name for name, _ in step.model.named_parameters())
    step({"inputs": torch.ones(4, ordinary.WIDTH), "labels": torch.tensor([0, 1, 2, 0])})
    assert calls


@pytest.mark.parametrize("name", ["packed_sequences", "packs_itself", "buffers_in_blocks"])
@pytest.mark.parametrize("settings", [{}, {"keep": ("matmul",)}], ids=["all", "keep"])
def test_blocks_that_are_computed_again_give_the_same_update(name: str, settings: Any) -> None:
    case = CASES[name]
    plain, again = step_of(case), step_of(case, techniques=[Recompute(blocks=("layers.*",), **settings)])
    for start in (0, 4):
        window = case.rows()[start : start + 4]
        assert plain(window_of(case, window)).loss == again(window_of(case, window)).loss
    for mine, its in zip(leaves(plain.state_dict()), leaves(again.state_dict()), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_FLOATS])
def test_what_a_tool_tries_leaves_no_trace(name: str) -> None:
    case = CASES[name]
    step = step_of(case)
    before = copy.deepcopy(step.state_dict())
    with preserved(step):
        step(window_of(case, case.rows()[:4]))
    after = step.state_dict()
    assert repr(after) == repr(before)
    for mine, its in zip(leaves(after), leaves(before), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].splits])
def test_the_laws_hold_by_certify(name: str) -> None:
    case = CASES[name]
    found = certify(
        case.model(), case.rows(), loss=case.loss, collate=case.collate, forward=case.forward, global_batch=6
    )
    assert [(law.name, law.verdict) for law in found.laws if law.verdict == Verdict.BROKEN] == []


def test_extra_state_that_no_checkpoint_can_hold_is_refused_before_training(tmp_path: Path) -> None:
    class Unplain(ordinary.Named):
        def get_extra_state(self) -> Any:
            return {"seen": {1, 2}}

    case = Case(Unplain, ordinary.named_points, ordinary.nan_point)
    with pytest.raises(SettingError, match="'Unplain' has extra state .* is a set"):
        run_of(case, tmp_path)


def test_a_state_of_another_model_is_refused_though_forward_makes_buffers() -> None:
    state = step_of(CASES["buffer_replaced"]).state_dict()
    with pytest.raises(SettingError, match="buffers are not those .*: mean"):
        step_of(CASES["buffer_made"]).load_state_dict(state)
    with pytest.raises(SettingError, match="extra state is kept by other modules .*: ''"):
        step_of(CASES["buffer_made"]).load_state_dict(step_of(CASES["extra_state"]).state_dict())


REFUSED = {
    "sparse": (lambda: nn.Embedding(5, 3, sparse=True), "gives sparse gradients, .* sparse=False"),
    "max_norm": (lambda: nn.Embedding(5, 3, max_norm=1.0), "has max_norm, which changes weights in forward"),
    "sparse bag": (lambda: nn.EmbeddingBag(5, 3, sparse=True), "gives sparse gradients, .* sparse=False"),
    "complex": (lambda: nn.Linear(2, 2, dtype=torch.complex64), "'weight' is complex, .*view_as_real"),
    "no weights": (nn.ReLU, "is a ReLU without parameters, .* nn.ModuleList"),
    "lazy": (lambda: nn.LazyLinear(2), "'weight' has no shape yet, .* Run a batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_step_can_train_is_refused_when_the_step_is_made(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(SettingError, match=message):
        Step(make(), AdamW(learning_rate=0.01))


def test_a_frozen_sparse_or_complex_weight_trains_beside_others() -> None:
    model = nn.ModuleDict(
        {"table": nn.Embedding(5, 3, sparse=True), "wave": nn.Linear(2, 2, dtype=torch.complex64)}
    )
    model.requires_grad_(False)
    model["head"] = nn.Linear(3, ordinary.CLASSES)
    step = Step(
        model, AdamW(learning_rate=0.01), forward=lambda model, batch: model["head"](model["table"](batch[0]))
    )
    assert step((torch.tensor([0, 1, 4]), torch.tensor([0, 1, 2]))).applied


def test_outputs_without_logits_are_refused_with_what_there_is() -> None:
    for outputs, found in (
        ({"last_hidden_state": torch.ones(1)}, "a dict, which has last_hidden_state"),
        ((), "a tuple"),
        (ordinary.PointBatch(torch.ones(1, 2), torch.zeros(1)), "a PointBatch"),
        (None, "None"),
    ):
        with pytest.raises(
            SettingError, match=f"no logits in what the model returns, {found}.* with a head for the task"
        ):
            cross_entropy(outputs, {"labels": torch.zeros(1)})


def test_two_optimizers_are_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    model = ordinary.Named()
    optimizers: Any = [torch.optim.SGD(model.body[at].parameters(), lr=0.1) for at in (0, 3)]
    with pytest.raises(SettingError, match="got 2, expected one. Give one with a group"):
        train(model, ordinary.named_points(), optimizer=optimizers, output=tmp_path, track=False)


class SparseByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 3))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(numbers, self.table, sparse=True).mean(1)


@pytest.mark.parametrize("techniques", [(), (ClipNorm(1.0),)], ids=["bare", "measured by its norm"])
def test_a_sparse_gradient_of_a_function_is_refused_with_what_to_do(
    techniques: tuple[Technique, ...],
) -> None:
    step = Step(SparseByFunction(), AdamW(learning_rate=0.1), techniques=techniques)
    with pytest.raises(
        SettingError, match=r"weight of shape \(\d+, \d+\) gets a sparse gradient, .* with sparse=False"
    ):
        step((torch.zeros(4, 2, dtype=torch.long), torch.zeros(4, dtype=torch.long)))


def test_a_class_in_place_of_a_model_is_refused_by_a_step_too() -> None:
    with pytest.raises(SettingError, match=r"^model: got the class Flatten, expected an nn.Module. Call it"):
        Step(nn.Flatten, AdamW(), "mse")  # type: ignore[arg-type]
