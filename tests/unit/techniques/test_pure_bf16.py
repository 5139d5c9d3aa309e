from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.parameters import parameter_groups
from snugfit.core.selection import check
from snugfit.core.technique import Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.kit import row_chunks
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.lora import LoRA
from snugfit.techniques.numerics import pure_bf16
from snugfit.techniques.numerics.int8 import Int8
from snugfit.techniques.numerics.nf4 import NF4
from snugfit.techniques.numerics.pure_bf16 import PureBF16, PureBF16Optimizer, Rounding, States, to_bf16_
from tests.laws import problems
from tests.laws.compare import tensors
from tests.laws.problems import differences, make_step, saved
from tests.unit.techniques.live_memory import Live
from tests.unit.techniques.quantised_runs import adapted_step, folder_of, llama, losses_of
from tests.unit.techniques.settings import context, optimizers_beside, refuses

OPTIMIZERS = optimizers_beside(PureBF16)
STOCK = [problems.reader, problems.bert, problems.gpt2, problems.vit, problems.normed]
BF16 = torch.bfloat16


def nearest(wide: Tensor, generator: torch.Generator) -> Tensor:
    """What this technique is there to avoid."""
    return wide.bfloat16()


def pushed(
    updates: int, rate: float, rounding: Rounding = "stochastic", states: States = "bf16", count: int = 64
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weights of 1 and their state after updates of AdamW by a gradient of 1, in steps of `rate`."""
    weight = nn.Parameter(torch.ones(count, dtype=BF16))
    inner = torch.optim.AdamW([weight], lr=rate, weight_decay=0.0)
    optimizer = PureBF16Optimizer(inner, rounding, states)
    weight.grad = torch.ones_like(weight)
    for _ in range(updates):
        optimizer.step()
    return weight.detach(), optimizer.state_dict()["state"][0]


@pytest.mark.parametrize(
    ("part", "low", "high"), [(2.0**-14, 0.95, 1.05), (2.0**-16, 0.9, 1.1), (2.0**-17, 0.0, 0.0)]
)
def test_kahan_keeps_steps_down_to_a_part_of_the_weight(part: float, low: float, high: float) -> None:
    """What is missing is kept in 8 bits too: of a step of 2**-17 on weights from 1 to 2 nothing is left."""
    weight = nn.Parameter(torch.linspace(1.05, 1.95, 64).to(BF16))
    start = weight.detach().float()
    optimizer = PureBF16Optimizer(torch.optim.SGD([weight], lr=part), "kahan")
    weight.grad = torch.ones_like(weight)
    for _ in range(2000):
        optimizer.step()
    moved = float((start - weight.detach().float()).mean()) / (2000 * part)
    assert low <= moved <= high


@pytest.mark.parametrize("rounding", ["stochastic", "kahan"])
def test_steps_smaller_than_bf16_can_tell_add_up(rounding: Rounding) -> None:
    weight, _ = pushed(400, 1e-4, rounding)
    # 64 weights, each off by a few of the gaps of 2^-8
    assert weight.float().mean() == pytest.approx(1 - 0.04, abs=2**-8 if rounding == "kahan" else 0.01)


def test_rounded_to_the_nearest_they_are_all_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pure_bf16, "rounded_stochastically", nearest)
    weight, _ = pushed(400, 1e-4)
    assert weight.unique().tolist() == [1.0]


@pytest.mark.slow
def test_a_second_moment_in_bf16_comes_to_what_it_is_in_fp32_and_stalls_where_it_is_rounded_to_the_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a beta of 0.999 a moment moves by a thousandth of what is missing, and bf16 tells a 256th."""
    updates = 1500
    expected = 1 - 0.999**updates  # 0.78
    _, state = pushed(updates, 0.0)
    assert state["exp_avg_sq"].dtype == BF16
    assert state["exp_avg_sq"].float().mean() == pytest.approx(expected, rel=0.03)
    _, wide = pushed(updates, 0.0, states="fp32")
    assert wide["exp_avg_sq"].dtype == torch.float32
    assert wide["exp_avg_sq"].mean() == pytest.approx(expected, rel=1e-3)
    monkeypatch.setattr(pure_bf16, "rounded_stochastically", nearest)
    _, stalled = pushed(updates, 0.0)
    assert stalled["exp_avg_sq"].float().max() < 0.4


def digits(kind: str) -> float:
    """The training loss after eight epochs of scikit-learn's digits at a small rate."""
    from sklearn.datasets import load_digits

    data = load_digits()
    inputs, labels = (
        torch.tensor(data.data / 16, dtype=torch.float32)[:1024],
        torch.tensor(data.target)[:1024],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))
    more = [] if kind == "fp32" else [PureBF16(rounding="kahan" if kind == "kahan" else "stochastic")]
    step = Step(model, AdamW(learning_rate=2e-4), techniques=more)
    for epoch in range(8):
        order = torch.randperm(1024, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(32):
            step((inputs[rows], labels[rows]))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs.to(model[0].weight.dtype)).float(), labels))


@pytest.mark.slow
def test_on_real_digits_both_roundings_learn_as_fp32_does_and_the_nearest_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full, stochastic, kahan = map(digits, ("fp32", "stochastic", "kahan"))
    assert stochastic == pytest.approx(full, rel=0.05) and kahan == pytest.approx(full, rel=0.05)
    monkeypatch.setattr(pure_bf16, "rounded_stochastically", nearest)
    assert digits("nearest") > 1.3 * full


@pytest.mark.parametrize("make", STOCK, ids=problems.name_of)
def test_weights_gradients_and_moments_are_in_bf16_and_so_is_what_the_model_computes(
    make: problems.Maker,
) -> None:
    problem = make(())
    step = make_step(problem, [AdamW(learning_rate=0.01), PureBF16()], micro_batch=4, dtype=torch.float32)
    window = problem.windows(torch.float32)[0]  # floating inputs come in float32
    result = step(window)
    assert result.applied and torch.tensor(result.loss).isfinite()
    norms = {f"body.1.{name}" for name in ("weight", "bias")} if make is problems.normed else set()
    wide = {name for name, tensor in problems.weights(step).items() if tensor.dtype != BF16}
    assert wide == norms
    assert {name for name, tensor in problems.gradients(step).items() if tensor.dtype != BF16} == norms
    places = [name for group in saved(step)["optimizer"]["param_groups"] for name in group["param_names"]]
    for place, state in saved(step)["optimizer"]["state"].items():
        assert state["exp_avg"].dtype == (torch.float32 if places[place] in norms else BF16)
        assert state["step"].dtype == torch.float32  # which counts beyond 256


def test_what_counts_and_what_is_computed_keeps_its_precision() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("places", torch.ones(2))
            self.register_buffer("frequencies", torch.ones(2), persistent=False)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.tied = nn.Linear(2, 2)
            self.other = nn.Linear(2, 2)
            self.other.weight = self.tied.weight

    model = Own()
    weight = model.tied.weight
    to_bf16_(model)
    assert model.other.weight is model.tied.weight is weight and weight.dtype == BF16
    buffers = {name: buffer.dtype for name, buffer in model.named_buffers()}
    assert (buffers["places"], buffers["frequencies"], buffers["seen"]) == (BF16, torch.float32, torch.int64)
    assert buffers["norm.running_mean"] == model.norm.weight.dtype == torch.float32


@pytest.mark.parametrize("rounding", ["stochastic", "kahan"])
@pytest.mark.parametrize("states", ["bf16", "fp32"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=problems.name_of)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    optimizer: Technique, rounding: Rounding, states: States
) -> None:
    problem = problems.reader((optimizer,))
    techniques = [optimizer, PureBF16(rounding=rounding, states=states)]
    whole = make_step(problem, techniques, dtype=torch.float32)
    windows = problem.windows(torch.float32)
    whole(windows[0])
    state = saved(whole)
    resumed = make_step(problem, techniques, dtype=torch.float32, model_seed=2)
    resumed.load_state_dict(state)
    assert not differences(state, saved(resumed))
    for window in windows[1:]:
        assert whole(window).applied and resumed(window).applied
        assert not differences(saved(whole), saved(resumed))
    moments = [
        value.dtype
        for entry in saved(whole)["optimizer"]["state"].values()
        for name, value in tensors(entry).items()
        if isinstance(value, Tensor) and value.dtype == BF16 and name != "/compensation"
    ]
    assert not moments or states == "bf16"


def test_another_seed_and_another_parameter_draw_other_numbers() -> None:
    def stepped(seed: int) -> list[Tensor]:
        weights = [nn.Parameter(torch.ones(200, dtype=BF16)) for _ in range(2)]
        optimizer = PureBF16Optimizer(torch.optim.SGD(weights, lr=0.001), seed=seed)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        return [weight.detach() for weight in weights]

    one, other = stepped(0), stepped(1)
    assert not torch.equal(one[0], other[0]) and not torch.equal(one[0], one[1])
    assert all(map(torch.equal, one, stepped(0)))


def test_adapters_stay_in_fp32_beside_a_base_in_bf16() -> None:
    problem = problems.gpt2(())
    step = make_step(problem, [AdamW(learning_rate=0.01), LoRA(rank=2), PureBF16()], dtype=torch.float32)
    assert step(problem.windows()[0]).applied
    kinds = {p.requires_grad: p.dtype for p in step.model.parameters()}
    assert kinds == {True: torch.float32, False: BF16}


@pytest.mark.parametrize("quantised", [NF4(), Int8()], ids=problems.name_of)
def test_beside_a_quantised_base_all_that_is_left_of_it_is_in_bf16_and_so_is_what_blocks_hand_on(
    quantised: Technique, tmp_path: Path
) -> None:
    """QLoRA as people run it: embeddings, norms and head in bf16, products in bf16, adapters and their states in fp32."""
    folder = folder_of(llama, tmp_path)
    step = adapted_step([quantised, PureBF16()], folder)
    loaded = step.model.get_parameter("model.embed_tokens.weight")
    kinds = {p.dtype for p in step.model.parameters() if not p.requires_grad and p.is_floating_point()}
    assert loaded.dtype == BF16 and kinds == {BF16}
    handed: set[torch.dtype] = set()
    for block in step.model.get_submodule("model.layers"):
        block.register_forward_hook(
            lambda _, __, out: handed.add((out[0] if isinstance(out, tuple) else out).dtype)
        )
    losses = losses_of(step, 10)
    assert handed == {BF16} and losses[-1] < losses[0] - 0.3
    wide = losses_of(adapted_step([quantised], folder), 10)
    assert losses[-1] == pytest.approx(wide[-1], abs=0.1 * (wide[0] - wide[-1]))
    assert {p.dtype for p in step.model.parameters() if p.requires_grad} == {torch.float32}
    assert step.seams.export is not None
    whole = step.seams.export(copy.deepcopy(step.model))
    assert {p.dtype for p in whole.parameters()} == {BF16}
    in_place = PureBF16().prepare(quantised.prepare(llama()))
    assert {each.weight.dtype for each in in_place.modules() if isinstance(each, nn.Linear)} == {BF16}


def test_averages_are_in_fp32_and_swapped_in_and_out_without_a_trace() -> None:
    problem = problems.reader(())
    step = make_step(problem, [EMA(decay=0.5), PureBF16()], dtype=torch.float32)
    step(problem.windows(torch.float32)[0])
    before = problems.weights(step)
    with step.averaged():
        assert differences(before, problems.weights(step))
    assert not differences(before, problems.weights(step))
    assert {t.dtype for t in tensors(saved(step)["techniques"]["ema"]).values()} == {torch.float32}


def test_nothing_is_left_in_the_model_and_a_copy_of_it_computes() -> None:
    problem = problems.vit(())
    step = make_step(problem, [PureBF16()], dtype=torch.float32)
    window = problem.windows(torch.float32)[0]
    step(window)
    other = copy.deepcopy(step.model)
    assert not any(module._forward_pre_hooks for module in other.modules())
    assert set(other.state_dict()) == set(problem.model().state_dict())
    pixels = window["pixel_values"].bfloat16()
    assert other(pixel_values=pixels, interpolate_pos_encoding=True).logits.dtype == BF16


@pytest.mark.parametrize("other", ["bf16", "fp16", "fp32_logits", "schedule_free"])
def test_another_precision_and_what_cannot_hold_is_refused(other: str) -> None:
    with pytest.raises(PlanConflict, match=rf"'{other}'.*Remove one|'pure_bf16'.*Remove one"):
        check([PureBF16(), find(other).example()])


def test_a_device_that_only_emulates_is_refused_before_the_model_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pure_bf16, "has_bf16", lambda device: False)
    model = nn.Linear(2, 2)
    with pytest.raises(SettingError, match=r"plan\.numerics: bf16 is only emulated on cpu"):
        Step(model, AdamW(), techniques=[PureBF16()])
    assert model.weight.dtype == torch.float32


@pytest.mark.parametrize("setting", [{"rounding": "nearest"}, {"states": "fp16"}])
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    refuses(PureBF16, **setting)


def test_transformers_is_asked_for_bf16_when_it_loads() -> None:
    assert PureBF16().loading(nn.Linear(2, 2)) == {"dtype": BF16}


Loss = Callable[[Any, Any], Tensor]


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(reduction="none")], ids=str)
def test_losses_are_computed_in_fp32(loss: str | Loss) -> None:
    model = nn.Linear(2, 3)
    step = Step(model, AdamW(), loss, [PureBF16()])
    found: list[Tensor] = []
    window = (torch.randn(4, 2), torch.tensor([0, 1, 2, 0]))
    model.register_forward_hook(lambda _m, _i, output: found.append(output.detach()))
    result = step(window)
    exact = nn.functional.cross_entropy(found[0].double(), window[1])
    assert found[0].dtype == BF16
    assert result.loss == pytest.approx(float(exact), rel=1e-6)  # bf16 would be off by 2^-9


def stepped(
    optimizer: Technique, settings: PureBF16, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> tuple[dict[str, Any], PureBF16Optimizer]:
    """Four updates of a table whose pieces have three rows each, in pieces or as a whole; loaded anew after two."""
    monkeypatch.setattr(row_chunks, "PIECE", 3 * 16)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 16), nn.Linear(16, 5)).bfloat16()
    make = optimizer.seams(context(model)).optimizer
    assert make is not None

    def made() -> PureBF16Optimizer:
        found = PureBF16Optimizer(make(parameter_groups(model)), settings.rounding, settings.states, seed=3)
        if not cut:
            found._cut.clear()
        return found

    stepping = made()
    for update in range(4):
        if update == 2:
            saved_so_far = copy.deepcopy(stepping.state_dict())
            stepping = made()
            stepping.load_state_dict(saved_so_far)
        model.zero_grad()
        model(torch.arange(7 - update)).square().sum().backward()
        stepping.step()
    return dict(model.named_parameters()), stepping


@pytest.mark.parametrize(
    "settings", [PureBF16(), PureBF16(rounding="kahan"), PureBF16(states="fp32")], ids=str
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=problems.name_of)
def test_a_large_weight_that_is_stepped_in_pieces_is_stepped_as_it_is_whole(
    optimizer: Technique, settings: PureBF16, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole, at_once), (cut, in_pieces) = (
        stepped(optimizer, settings, monkeypatch, cut=each) for each in (False, True)
    )
    assert not differences(whole, cut)
    assert not differences(at_once.state_dict(), in_pieces.state_dict())


def test_what_is_made_in_fp32_is_of_a_piece_and_not_of_the_whole_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = nn.Parameter(torch.ones(64, 1024, dtype=BF16))
    optimizer = PureBF16Optimizer(torch.optim.AdamW([weight], lr=0.1, foreach=False))
    peaks = {}
    for piece in (weight.numel(), 4 * 1024):
        monkeypatch.setattr(row_chunks, "PIECE", piece)
        weight.grad = torch.ones_like(weight)
        optimizer.step()  # which makes the state the first time
        with Live() as live:
            optimizer.step()
        peaks[piece] = live.peak
    assert peaks[weight.numel()] > 4 * 4 * weight.numel()
    assert peaks[4 * 1024] < 7 * 4 * 4 * 1024
