"""Each pitfall of models, optimizers and settings on a planted fault, and not on its sound twin."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.doctor.door import examine, examine_module
from snugfit.doctor.findings import PITFALLS
from snugfit.system.processor import processor_flags


def data(rows: int = 32, labels: int = 3) -> list[tuple[Tensor, int]]:
    source = torch.Generator().manual_seed(0)
    return [(torch.randn(4, generator=source), number % labels) for number in range(rows)]


def net(*last: nn.Module, norm: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8, bias=norm is None),
        *([] if norm is None else [norm]),
        nn.ReLU(),
        nn.Linear(8, 3),
        *last,
    )


def found(model: nn.Module, rows=None, **settings) -> dict[str, str]:
    """Severities by pitfall, but for the note that nothing is held out."""
    settings = {"global_batch": 8, "validation": 0.25, **settings}
    examination = examine(model, data() if rows is None else rows, **settings)
    assert all(finding.pitfall in PITFALLS for finding in examination.findings)
    return {finding.pitfall: str(finding.certainty) for finding in examination.findings}


class Wired(nn.Module):
    """Two hidden layers, wired as a test says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.act, self.act2 = nn.ReLU(), nn.ReLU()

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.act2(self.second(self.act(self.first(rows)))))


def test_a_sound_training_is_healthy():
    assert found(Wired()) == {}


def test_a_stateless_module_in_two_places_is_noted():
    class Reusing(Wired):
        def forward(self, rows: Tensor) -> Tensor:
            return self.last(self.act(self.second(self.act(self.first(rows)))))

    (finding,) = examine(Reusing(), data(), global_batch=8, validation=0.25).findings
    assert (finding.pitfall, finding.where) == ("shared_module", "act")
    assert finding.certainty == "worth a look" and finding.evidence[0] == "2 calls"


def test_a_parameter_that_the_forward_leaves_out_gets_no_gradient():
    class Skipping(Wired):
        def forward(self, rows: Tensor) -> Tensor:
            return self.last(self.act(self.first(rows)))

    (finding,) = examine(Skipping(), data(), global_batch=8, validation=0.25).findings
    assert (finding.pitfall, finding.where) == ("no_gradient", "second.bias")
    assert "2 of 6 parameters that train get no gradient in 3 windows" in finding.what


def test_a_gradient_of_zeros_alone_is_found():
    class Dead(Wired):
        def forward(self, rows: Tensor) -> Tensor:
            hidden = self.act(self.first(rows))
            return self.last(hidden + 0 * self.second(hidden))

    (finding,) = examine(Dead(), data(), global_batch=8, validation=0.25).findings
    assert "get a gradient of zeros alone" in finding.what and finding.where.startswith("second")


@pytest.mark.slow  # imports peft
def test_adapters_that_begin_at_zero_are_alive_after_the_first_update():
    adapted = [sf.AdamW(learning_rate=1e-3), sf.LoRA(rank=2)]
    assert found(Wired(), techniques=adapted) == {}


def test_a_frozen_parameter_that_moves_is_certain():
    class Scaled(Wired):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8), requires_grad=False)

        def forward(self, rows: Tensor) -> Tensor:
            return self.last(self.act2(self.second(self.act(self.first(rows)) * self.scale)))

    class Writing(Scaled):
        def forward(self, rows: Tensor) -> Tensor:
            self.scale.mul_(0.9)
            return super().forward(rows)

    assert found(Scaled()) == {}
    assert found(Writing()) == {"frozen_moves": "certain"}


def test_what_the_optimizer_does_not_hold_never_moves():
    model = Wired()
    part = torch.optim.SGD([*model.first.parameters(), *model.second.parameters()], lr=0.1)
    assert found(model, optimizer=part) == {"not_in_optimizer": "likely"}
    assert found(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) == {}


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_the_optimizer_holds_twice_is_certain():
    model = Wired()
    twice = torch.optim.SGD([*model.parameters(), model.last.bias], lr=0.1)
    (finding,) = examine(model, data(), optimizer=twice, global_batch=8, validation=0.25).findings
    assert (finding.pitfall, finding.certainty, finding.where) == (
        "twice_in_optimizer",
        "certain",
        "last.bias",
    )


def test_decay_on_biases_is_noted_and_not_where_a_technique_makes_the_groups():
    model = Wired()
    decaying = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    assert found(model, optimizer=decaying) == {"decay_on_vectors": "worth a look"}
    assert found(model, optimizer=sf.AdamW(weight_decay=0.1)) == {}


def test_probabilities_before_cross_entropy_are_certain_and_before_another_loss_are_not():
    assert found(net(nn.Softmax(dim=-1))) == {"softmax_twice": "certain"}
    rows = [(features, torch.eye(3)[label]) for features, label in data()]
    assert found(net(nn.Softmax(dim=-1)), rows, loss="mse") == {}


def test_labels_without_a_score_are_certain():
    assert found(net(), data(labels=5)) == {"unknown_label": "certain"}


def test_batch_norm_is_warned_of_in_tiny_micro_batches_and_noted_under_accumulation():
    settings = {"rows": data(96), "global_batch": 32}
    assert found(net(norm=nn.BatchNorm1d(8)), micro_batch=4, **settings) == {"batch_norm": "likely"}
    assert found(net(norm=nn.BatchNorm1d(8)), micro_batch=16, **settings) == {"batch_norm": "worth a look"}
    assert found(net(norm=nn.BatchNorm1d(8)), **settings) == {}
    assert found(net(norm=nn.LayerNorm(8)), micro_batch=4, **settings) == {}


def test_parts_in_evaluation_mode_are_told_of_a_model_that_trains_and_not_of_one_as_it_was_loaded():
    model = net(norm=nn.BatchNorm1d(8))
    model[1].eval()
    assert found(model, data(96), global_batch=32) == {"train_mode": "likely"}
    assert found(model.eval(), data(96), global_batch=32) == {}


def test_parameters_that_are_unfrozen_later_need_a_group():
    model = Wired()
    held = torch.optim.SGD(model.last.parameters(), lr=0.1)
    assert found(model, optimizer=held, techniques=[sf.GradualUnfreeze()]) == {"group_holes": "likely"}
    whole = torch.optim.SGD(model.parameters(), lr=0.1)
    assert found(model, optimizer=whole, techniques=[sf.GradualUnfreeze()]) == {}


class SaidBfloat16(Wired):
    """With the configuration of a checkpoint in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {"dtype": "bfloat16"})()


def test_weights_of_bfloat16_in_float16_are_certain():
    assert found(SaidBfloat16(), techniques=[sf.AdamW(), sf.FP16()])["bf16_in_fp16"] == "certain"
    assert "bf16_in_fp16" not in found(Wired(), techniques=[sf.AdamW(), sf.FP16()])


def test_bfloat16_without_instructions_for_it_is_noted(monkeypatch):
    with_it, without = {"avx2", "amx_bf16"}, {"avx2", "fma"}
    for flags, expected in ((with_it, {}), (without, {"emulated_bf16": "worth a look"}), (set(), {})):
        monkeypatch.setattr("snugfit.doctor.check_recipe.processor_flags", lambda flags=flags: flags)
        assert found(Wired(), techniques=[sf.AdamW(), sf.BF16()]) == expected


def test_flags_are_read_of_x86_and_of_arm(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nflags\t\t: fpu avx2 amx_bf16\n")
    assert processor_flags(file) == {"fpu", "avx2", "amx_bf16"}
    file.write_text("processor : 0\nFeatures : fp bf16\n")
    assert processor_flags(file) == {"fp", "bf16"}
    assert processor_flags(tmp_path / "none") == set()


@pytest.mark.parametrize(
    ("rate", "expected"), [(3.0, "likely"), (1e-2, None), (1e-4, None), (1e-9, "likely")]
)
def test_a_rate_is_judged_by_the_size_of_the_weights(rate, expected):
    assert found(Wired(), optimizer=sf.AdamW(learning_rate=rate)).get("learning_rate") == expected


def test_a_rate_of_plain_sgd_is_not_judged():
    assert found(Wired(), optimizer=sf.SGD(learning_rate=3.0)) == {}


@pytest.mark.filterwarnings("ignore:inverse_sqrt.warmup")
def test_a_warm_up_longer_than_the_run_is_found():
    settings = {"rows": data(96), "epochs": 1}
    late = [sf.AdamW(), sf.InverseSqrt(warmup=1000)]
    assert found(Wired(), techniques=late, **settings) == {"schedule_length": "likely"}
    assert found(Wired(), techniques=[sf.AdamW(), sf.InverseSqrt(warmup=2)], **settings) == {}


def test_what_is_not_held_out_is_noted():
    assert found(Wired(), validation=None) == {"never_evaluated": "worth a look"}


def test_a_model_without_data_is_looked_at_as_it_stands():
    assert [each.pitfall for each in examine_module(net(nn.Softmax(dim=-1)), "net").findings] == [
        "softmax_twice"
    ]
    clean = examine_module(net(), "net")
    assert clean.findings == () and clean.left_out


def test_the_model_and_the_random_state_stay_as_they_were():
    model = Wired()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    state, python = torch.get_rng_state(), random.getstate()
    found(model)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and random.getstate() == python
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize(("scale", "ill"), [(1.0, False), (300.0, True)])
def test_inputs_that_are_not_normalised_are_found_at_the_layer_that_gets_them(scale: float, ill: bool):
    rows = [(inputs * scale, label) for inputs, label in data()]
    findings = examine(Wired(), rows, global_batch=8, validation=0.25).findings
    assert [each.pitfall for each in findings] == ["unscaled_inputs"] * ill
    if ill:
        assert findings[0].where == "first" and findings[0].certainty == "likely"


def test_a_norm_before_the_first_layer_scales_its_inputs():
    class Normed(Wired):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(self.norm(rows))

    rows = [(inputs * 300, label) for inputs, label in data()]
    assert found(Normed(), rows) == {}


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_before_a_norm_that_takes_it_away_is_noted(bias: bool):
    class Normed(Wired):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(8, 8, bias=bias)
            self.norm, self.layer_norm = nn.BatchNorm1d(8), nn.LayerNorm(8)

        def forward(self, rows: Tensor) -> Tensor:
            inner = self.layer_norm(self.first(rows))  # of each row, so that a bias changes it
            return self.last(self.act(self.norm(self.second(inner))))

    findings = examine(Normed(), data(), global_batch=8, validation=0.25).findings
    assert [(each.pitfall, each.where) for each in findings] == [("bias_before_norm", "second")] * bias
