from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from snugfit.core.parameters import parameter_groups
from snugfit.errors import SettingError
from snugfit.kit.quantized.frozen_linear import QuantisedLinear
from snugfit.step.step import Step
from snugfit.techniques.learning.lora import lora_
from snugfit.techniques.learning.muon import GatheringMuon, Muon, hidden_matrices
from snugfit.techniques.numerics.nf4 import nf4_
from tests.unit.techniques.settings import context, refuses


class Tiny(nn.Module):
    """A head tied to an embedding, a kernel, a matrix of one row, and two hidden matrices."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.mix = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.query = nn.Parameter(torch.randn(1, 6))
        self.out = nn.Parameter(torch.randn(6, 4))
        self.head = nn.Linear(4, 7)
        if tied:
            self.head.weight = self.tokens.weight


@pytest.mark.parametrize("name", ["learning_rate", "adamw_learning_rate", "adamw_epsilon"])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_or_epsilon_is_refused(name: str, value: float) -> None:
    refuses(Muon, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("iterations", 0),
        ("iterations", 100),
        ("iterations_in", "fp16"),
        ("weight_decay", -0.1),
        ("adamw_betas", (0.9,)),
        ("adamw_betas", (0.9, 1.0)),
    ],
)
def test_other_impossible_settings_are_refused(name: str, value: Any) -> None:
    refuses(Muon, **{name: value})


def made(settings: Muon, model: nn.Module) -> torch.optim.Optimizer:
    make = settings.seams(context(model)).optimizer
    assert make is not None
    return make(parameter_groups(model))


def names(optimizer: torch.optim.Optimizer) -> dict[str, list[str]]:
    return {group["name"]: group["param_names"] for group in optimizer.param_groups}


@pytest.mark.parametrize("tied", [True, False])
def test_neither_embeddings_nor_the_head_nor_vectors_nor_kernels_are_hidden_matrices(tied: bool) -> None:
    model = Tiny(tied)
    assert {id(matrix) for matrix in hidden_matrices(model)} == {id(model.mix.weight), id(model.out)}


def test_each_parameter_has_one_optimizer_and_vectors_are_not_decayed() -> None:
    optimizer = made(Muon(weight_decay=0.2), Tiny())
    assert names(optimizer) == {
        "muon decay": ["out", "mix.weight"],
        "adamw decay": ["tokens.weight", "conv.weight"],
        "adamw no_decay": ["query", "conv.bias", "mix.bias", "norm.weight", "norm.bias", "head.bias"],
    }
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.2, 0.0]


def test_the_settings_reach_both_optimizers() -> None:
    settings = Muon(
        learning_rate=0.3,
        momentum=0.5,
        nesterov=False,
        iterations=7,
        match_adamw=True,
        adamw_learning_rate=0.4,
        adamw_betas=(0.5, 0.6),
        adamw_epsilon=0.1,
    )
    muon, *rest = made(settings, Tiny()).param_groups
    assert (muon["lr"], muon["momentum"], muon["nesterov"], muon["ns_steps"]) == (0.3, 0.5, False, 7)
    assert muon["adjust_lr_fn"] == "match_rms_adamw"
    for group in rest:
        assert (group["lr"], group["betas"], group["eps"]) == (0.4, (0.5, 0.6), 0.1)


@pytest.mark.parametrize("given", ["mix", "mix.weight", "mi*"])
def test_further_modules_and_parameters_go_to_adamw_by_name(given: str) -> None:
    assert names(made(Muon(adamw_for=(given,)), Tiny()))["muon decay"] == ["out"]


@pytest.mark.parametrize("given", ["mi", "mix.weights", "blocks.0"])
def test_a_name_of_nothing_is_refused(given: str) -> None:
    with pytest.raises(SettingError, match=f"^muon.adamw_for: '{given}' matches no module or parameter"):
        made(Muon(adamw_for=(given,)), Tiny())


@pytest.mark.parametrize(
    ("settings", "model"), [(Muon(), nn.Linear(3, 3)), (Muon(adamw_for=("mix", "out")), Tiny())]
)
def test_a_model_without_a_hidden_matrix_is_refused(settings: Muon, model: nn.Module) -> None:
    with pytest.raises(SettingError, match="^muon: the model has no matrix besides .* Use adamw.$"):
        made(settings, model)


def test_a_model_of_hidden_matrices_alone_needs_no_adamw() -> None:
    model = nn.ParameterList([torch.randn(3, 3), torch.randn(4, 3)])
    assert [group["name"] for group in made(Muon(), model).param_groups] == ["muon decay"]


@pytest.mark.parametrize("match_adamw", [False, True])
def test_a_matrix_moves_by_much_the_same_in_all_directions(match_adamw: bool) -> None:
    model = nn.ParameterList([torch.zeros(24, 6, dtype=torch.float64)])
    source = torch.Generator().manual_seed(0)
    gradient = torch.randn(24, 6, dtype=torch.float64, generator=source) @ torch.diag(
        torch.tensor([1.0, 2.0, 5.0, 10.0, 20.0, 50.0], dtype=torch.float64)
    )
    model[0].grad = gradient
    optimizer = made(Muon(learning_rate=0.1, match_adamw=match_adamw), model)
    optimizer.step()
    scale = 0.1 * (0.2 * 24**0.5 if match_adamw else 2.0)
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    along = -(u.T @ model[0].detach() @ v.T) / scale
    singular = along.diagonal()
    assert torch.linalg.cond(gradient) > 20
    assert singular.min() > 0.5 and singular.max() < 1.3, "what the polynomial promises"
    assert (along - torch.diag(singular)).abs().max() < 1e-9, "in the directions of the gradient"


def test_a_window_in_micro_batches_gives_the_weights_of_one_pass_in_float32() -> None:
    """Iterations in bf16 make 8% of a movement from the last bit of a sum."""
    source = torch.Generator().manual_seed(0)
    windows = [
        (torch.randn(12, 32, generator=source), torch.randint(5, (12,), generator=source)) for _ in range(3)
    ]
    found = []
    for micro_batch in (None, 3):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = [part for _ in range(3) for part in (nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU())]
            model = nn.Sequential(nn.Linear(32, 64), *layers, nn.Linear(64, 5))
        start = parameters_to_vector(model.parameters()).detach()
        step = Step(model, Muon(), micro_batch=micro_batch)
        for window in windows:
            step(window)
        found.append(parameters_to_vector(model.parameters()).detach())
    moved = (found[0] - start).norm()
    assert (found[0] - found[1]).norm() / moved < 1e-4


@pytest.mark.parametrize("shape", [(24, 6), (6, 24)])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_in_bf16_it_is_torchs_own_bit_for_bit(shape: tuple[int, int], nesterov: bool, adjust: str) -> None:
    source = torch.Generator().manual_seed(0)
    theirs = nn.Parameter(torch.randn(shape, generator=source))
    ours = nn.Parameter(theirs.detach().clone())
    settings = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "adjust_lr_fn": adjust}
    optimizers = [torch.optim.Muon([theirs], **settings), GatheringMuon([ours], in_bf16=True, **settings)]
    for _ in range(3):
        theirs.grad = torch.randn(shape, generator=source)
        ours.grad = theirs.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(theirs, ours)


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    model = Tiny()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = made(Muon(), model)
    model.mix.weight.grad = torch.ones(6, 4)
    model.norm.bias.grad = torch.ones(6)
    optimizer.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"mix.weight", "norm.bias"}
    assert set(optimizer.state) == {model.mix.weight, model.norm.bias}


def test_adapters_go_with_what_they_adapt() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 6), nn.Linear(6, 9))
    lora_(model, rank=2, targets=["0", "1", "2"])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [names[id(matrix)] for matrix in hidden_matrices(model)] == [
        "1.base_layer.weight",
        "1.lora_A.default.weight",
        "1.lora_B.default.weight",
    ]


def test_no_quantised_weight_is_made_whole_to_find_the_hidden_matrices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is spread over devices cannot be, by one of them."""
    model = nf4_(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2)))
    monkeypatch.setattr(QuantisedLinear, "weight", property(lambda layer: pytest.fail("it was read")))
    assert not hidden_matrices(model), "the last layer is the head, and what is quantised learns nothing"
