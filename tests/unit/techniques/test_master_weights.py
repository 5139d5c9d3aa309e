from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import snugfit as sf
from snugfit.core.card import Sharing
from snugfit.core.parameters import decayed, parameter_groups
from snugfit.core.selection import check
from snugfit.core.technique import Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.kit import row_chunks
from snugfit.kit.optimizers.masters import MasterOptimizer
from snugfit.kit.precision import bf16_rounding
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.lookahead import Lookahead
from snugfit.techniques.learning.lora import LoRA
from snugfit.techniques.numerics.bf16 import BF16
from snugfit.techniques.numerics.master_weights import MasterWeights
from snugfit.techniques.numerics.nf4 import NF4
from tests.laws import problems
from tests.laws.compare import tensors
from tests.laws.problems import differences, make_step, saved
from tests.unit.techniques.quantised_runs import adapted_step, folder_of, llama, losses_of
from tests.unit.techniques.settings import context, optimizers_beside, refuses

OPTIMIZERS = optimizers_beside(MasterWeights)
STOCK = [problems.reader, problems.bert, problems.gpt2, problems.vit, problems.normed]
BF16_ = torch.bfloat16
Sums = Literal["bf16", "fp32"]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(11, 16), nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 5)
    )


def windows(count: int = 4, rows: int = 6) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [
        (torch.randint(0, 11, (rows,), generator=source), torch.randint(0, 5, (rows,), generator=source))
        for _ in range(count)
    ]


def by_hand(model: nn.Module, micro_batch: int, sums: torch.dtype) -> tuple[dict[str, Tensor], list[float]]:
    """The loop of the paper in plain torch: bf16 weights, masters in float32, AdamW; ends with the masters, and the loss of each window."""
    wide = {name: weight for name, weight in model.named_parameters() if weight.ndim < 2}
    narrow = {name: weight for name, weight in model.named_parameters() if weight.ndim >= 2}
    for weight in narrow.values():
        weight.data = weight.data.bfloat16()
    masters = {name: nn.Parameter(weight.detach().float()) for name, weight in narrow.items()} | wide
    groups = [
        {"params": [masters[n] for n in narrow], "weight_decay": 0.1},
        {"params": [masters[n] for n in wide], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, fused=True)
    losses = []
    for tokens, labels in windows():
        added: dict[str, Tensor] = {}
        loss = torch.zeros(())
        whole = micro_batch == len(labels)
        for rows in torch.arange(len(labels)).split(micro_batch):
            model.zero_grad()
            with torch.autocast("cpu", dtype=BF16_):
                values = F.cross_entropy(model(tokens[rows]).float(), labels[rows], reduction="none")
            (values.sum() / (len(labels) if whole else 1.0)).backward()
            loss = loss + values.detach().sum()
            for name, weight in (narrow | wide).items():
                assert weight.grad is not None
                gradient = weight.grad.to(sums if name in narrow else torch.float32)
                added[name] = added[name] + gradient if name in added else gradient.clone()
        for name, gradient in added.items():
            if not whole:
                gradient *= torch.tensor(1.0 / len(labels)).to(gradient.dtype)
            masters[name].grad = gradient.float()
        optimizer.step()
        with torch.no_grad():
            for name, weight in narrow.items():
                weight.copy_(masters[name])
        losses.append(float(loss / len(labels)))
    return {name: master.detach() for name, master in masters.items()}, losses


def masters_of(step: Step) -> dict[str, Tensor]:
    """The numbers that training goes on from."""
    assert isinstance(step.optimizer, MasterOptimizer)
    own = {parameter: state["master"] for parameter, state in step.optimizer.own.items()}
    return {name: own.get(each, each.detach()) for name, each in step.model.named_parameters()}


@pytest.mark.parametrize(("micro_batch", "gradients"), [(6, "bf16"), (6, "fp32"), (2, "bf16"), (2, "fp32")])
def test_it_trains_as_a_plain_loop_with_masters_bit_for_bit(micro_batch: int, gradients: Sums) -> None:
    step = Step(
        net(),
        AdamW(learning_rate=0.01, weight_decay=0.1),
        techniques=[MasterWeights(gradients=gradients)],
        micro_batch=micro_batch,
    )
    losses = [step(window).loss for window in windows()]
    model = net()
    assert {name for name, each in model.named_parameters() if each in decayed(model)} == {
        name for name, each in model.named_parameters() if each.ndim >= 2
    }
    expected, expected_losses = by_hand(model, micro_batch, torch.float32 if gradients == "fp32" else BF16_)
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert not differences(masters_of(step), expected)
    assert not differences(
        problems.weights(step), {name: each.detach() for name, each in model.named_parameters()}
    )


def test_a_sum_in_fp32_differs_from_one_in_bf16() -> None:
    one, other = (by_hand(net(), 2, dtype)[0] for dtype in (torch.float32, BF16_))
    assert differences(one, other)


def test_on_layers_that_autocast_rounds_anyway_the_masters_are_the_weights_of_bf16_bit_for_bit() -> None:
    """From weights that bf16 has, with sums in float32: what is stored is what autocast would make of each weight."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
        for parameter in made.parameters():
            parameter.data = parameter.data.bfloat16().float()
        return made

    masters, plain = (
        Step(model(), AdamW(learning_rate=0.01), techniques=[technique], micro_batch=2)
        for technique in (MasterWeights(gradients="fp32"), BF16())
    )
    source = torch.Generator().manual_seed(3)
    for _ in range(4):
        window = (torch.randn(6, 8, generator=source), torch.randint(0, 3, (6,), generator=source))
        assert masters(window).loss == plain(window).loss
    assert not differences(masters_of(masters), problems.weights(plain))


@pytest.mark.parametrize("make", STOCK, ids=problems.name_of)
def test_matrices_and_their_gradients_are_in_bf16_and_vectors_masters_and_moments_in_fp32(
    make: problems.Maker,
) -> None:
    problem = make(())
    step = make_step(
        problem, [AdamW(learning_rate=0.01), MasterWeights()], micro_batch=4, dtype=torch.float32
    )
    result = step(problem.windows(torch.float32)[0])
    assert result.applied and torch.tensor(result.loss).isfinite()
    matrices = {
        name
        for name, each in step.model.named_parameters()
        if each.ndim > 1 and each.numel() > max(each.shape)
    }
    assert {name for name, each in problems.weights(step).items() if each.dtype == BF16_} == matrices
    assert {name for name, each in problems.gradients(step).items() if each.dtype == BF16_} <= matrices
    assert {buffer.dtype for buffer in step.model.buffers() if buffer.is_floating_point()} <= {torch.float32}
    states = tensors(saved(step)["optimizer"]["state"])
    assert {value.dtype for value in states.values()} == {torch.float32}
    assert len([path for path in states if path.endswith("/master")]) <= len(matrices)


@pytest.mark.parametrize("gradients", ["bf16", "fp32"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=problems.name_of)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit_with_its_masters(
    optimizer: Technique, gradients: Sums
) -> None:
    problem = problems.reader((optimizer, MasterWeights()))
    techniques = [optimizer, MasterWeights(gradients=gradients)]
    whole = make_step(problem, techniques, dtype=torch.float32, micro_batch=3)
    given = problem.windows(torch.float32)
    whole(given[0])
    state = saved(whole)
    resumed = make_step(problem, techniques, dtype=torch.float32, micro_batch=3, model_seed=2)
    resumed.load_state_dict(state)
    assert not differences(state, saved(resumed))
    for window in given[1:]:
        assert whole(window).applied and resumed(window).applied
        assert not differences(saved(whole), saved(resumed))
    assert not differences(masters_of(whole), masters_of(resumed))


def test_steps_smaller_than_bf16_can_tell_add_up_exactly() -> None:
    weight, plain = nn.Parameter(torch.ones(8, dtype=BF16_)), nn.Parameter(torch.ones(8))
    optimizer = MasterOptimizer(torch.optim.SGD([weight], lr=2.0**-20))
    other = torch.optim.SGD([plain], lr=2.0**-20)
    weight.grad, plain.grad = torch.ones_like(weight), torch.ones_like(plain)
    for _ in range(3000):
        optimizer.step(), other.step()
    assert torch.equal(optimizer.own[weight]["master"], plain.detach())
    assert torch.equal(weight.detach(), plain.detach().bfloat16()) and weight[0] != 1


def test_where_something_else_moves_a_weight_its_master_begins_there_anew_and_the_others_go_on() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=BF16_))
    optimizer = MasterOptimizer(torch.optim.SGD([weight], lr=2.0**-12))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    weight.data[1] = 3.0  # of which autograd keeps no count
    optimizer.step()
    step = 2.0**-12
    expected = torch.tensor([1 - 2 * step, 3 - step, 1 - 2 * step, 1 - 2 * step])
    assert torch.equal(optimizer.own[weight]["master"], expected)


@pytest.mark.parametrize("other", [Lookahead(every=1, alpha=0.5), EMA(decay=0.5)], ids=problems.name_of)
def test_what_moves_weights_after_an_update_moves_their_masters_and_what_swaps_them_does_not(
    other: Technique,
) -> None:
    problem = problems.reader(())
    step = make_step(problem, [AdamW(learning_rate=0.01), other, MasterWeights()], dtype=torch.float32)
    for window in problem.windows(torch.float32):
        step(window)
        before = {name: master.clone() for name, master in masters_of(step).items()}
        with step.averaged():
            pass
        step.optimizer.zero_grad()
        step.optimizer.step()  # nothing to step: nothing moves
        assert not differences(before, masters_of(step))
    weights, masters = problems.weights(step), masters_of(step)
    moved = [
        name for name in weights if not torch.equal(weights[name], masters[name].to(weights[name].dtype))
    ]
    assert bool(moved) == isinstance(other, Lookahead)


def test_adapters_stay_in_fp32_without_masters_beside_a_base_in_bf16() -> None:
    problem = problems.gpt2(())
    step = make_step(problem, [AdamW(learning_rate=0.01), LoRA(rank=2), MasterWeights()], dtype=torch.float32)
    assert step(problem.windows()[0]).applied
    trained = {each.dtype for each in step.model.parameters() if each.requires_grad}
    frozen = {each.dtype for each in step.model.parameters() if each.ndim > 1 and not each.requires_grad}
    assert (trained, frozen) == ({torch.float32}, {BF16_})
    assert isinstance(step.optimizer, MasterOptimizer) and not step.optimizer.own


def test_a_quantised_base_computes_in_bf16_beneath_adapters(tmp_path: Path) -> None:
    step = adapted_step([NF4(), MasterWeights()], folder_of(llama, tmp_path))
    losses = losses_of(step, 10)
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.slow
def test_the_best_model_has_the_weights_that_were_scored_and_the_checkpoint_the_masters(
    tmp_path: Path,
) -> None:
    data = [
        {"input_ids": tokens, "labels": label}
        for window in windows()
        for tokens, label in zip(*window, strict=True)
    ]

    def forward(model: nn.Module, batch: Any) -> Tensor:
        found: Tensor = model(batch["input_ids"])
        return found

    sf.train(
        net(),
        data,
        validation=data[:4],
        optimizer=AdamW(learning_rate=0.01),
        techniques=[MasterWeights()],
        forward=forward,
        epochs=1,
        global_batch=6,
        output=tmp_path,
        track=False,
        device="cpu",
    )  # which evaluates once, at its end
    best = load_file(next(tmp_path.glob("**/best/*.safetensors")))
    masters = {
        name: value
        for path in tmp_path.glob("**/checkpoints/**/*.safetensors")
        for name, value in load_file(path).items()
        if name.endswith("master")
    }
    matrices = ["0.weight", "1.weight", "4.weight"]
    assert {name for name, each in best.items() if each.dtype == BF16_} == {*matrices}
    assert {each.dtype for each in masters.values()} == {torch.float32}
    for name, master in zip(matrices, [masters[each] for each in sorted(masters)], strict=True):
        assert torch.equal(best[name], master.bfloat16()) and not torch.equal(best[name].float(), master)


OF_POWERS = {"madgrad"}  # a power is rounded otherwise at the end of a tensor (test_one_by_one)


@pytest.mark.parametrize(
    "optimizer", [each for each in OPTIMIZERS if each.card.name not in OF_POWERS], ids=problems.name_of
)
def test_a_large_weight_that_is_stepped_in_pieces_is_stepped_as_it_is_whole(
    optimizer: Technique, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stepped(cut: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 16), nn.Linear(16, 5)).bfloat16()
        make = optimizer.seams(context(model)).optimizer
        assert make is not None
        stepping = MasterOptimizer(make(parameter_groups(model)))
        if not cut:
            stepping._cut.clear()
        for update in range(3):
            model.zero_grad()
            model(torch.arange(7 - update)).square().sum().backward()
            stepping.step()
        return dict(model.named_parameters()), copy.deepcopy(stepping.state_dict())

    monkeypatch.setattr(row_chunks, "PIECE", 3 * 16)
    (whole, at_once), (parts, in_pieces) = stepped(cut=False), stepped(cut=True)
    assert not differences(whole, parts) and not differences(at_once, in_pieces)


@pytest.mark.parametrize("other", ["bf16", "fp16", "pure_bf16", "fp32_logits", "schedule_free", "powersgd"])
def test_another_precision_and_what_cannot_hold_is_refused(other: str) -> None:
    with pytest.raises(PlanConflict, match=rf"'{other}'.*Remove one|'master_weights'.*Remove one"):
        check([MasterWeights(), find(other).example()])


@pytest.mark.parametrize("sharing", list(Sharing))
def test_several_devices_add_up_in_the_type_of_the_weights_so_that_sums_in_fp32_are_refused(
    sharing: Sharing,
) -> None:
    assert MasterWeights().refused_on(sharing) is None
    assert "master_weights.gradients" in (MasterWeights(gradients="fp32").refused_on(sharing) or "")


def test_a_device_that_only_emulates_is_refused_before_the_model_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bf16_rounding, "has_bf16", lambda device: False)
    model = nn.Linear(2, 2)
    with pytest.raises(SettingError, match=r"plan\.numerics: cpu has no bf16"):
        Step(model, AdamW(), techniques=[MasterWeights()])
    assert model.weight.dtype == torch.float32


def test_settings_out_of_range_are_refused() -> None:
    refuses(MasterWeights, gradients="fp16")


def test_transformers_is_asked_for_bf16_when_it_loads() -> None:
    assert MasterWeights().loading(nn.Linear(2, 2)) == {"dtype": BF16_}
