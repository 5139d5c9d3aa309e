"""A teacher's scores and features beside the labels."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snugfit.core.technique import Context
from snugfit.errors import PlanConflict, SettingError
from snugfit.recipe.entries import parse_list
from snugfit.recipe.strict_yaml import Places
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.distillation import (
    Distillation,
    _projected,
    divergence,
    feature_distance,
)
from tests.laws import material, problems
from tests.laws.problems import differences, make_step, relative_error, saved


class Net(nn.Module):
    """Somebody's own module, of any width inside."""

    def __init__(self, width: int = 6, dropout: float = 0.0, classes: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(5, width)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.drop(self.first(numbers).tanh()))
        return outputs


def made(kind: type[nn.Module], *args: Any, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(*args).double()


def window() -> dict[str, torch.Tensor]:
    (found,) = material.numbers((7,))
    return {"numbers": found["numbers"].double(), "labels": found["labels"]}


def step(technique: Distillation, student: nn.Module, **more: Any) -> Step:
    return Step(student, find("sgd")(learning_rate=0.1), techniques=[technique], **more)


def test_the_divergence_is_torchs_with_the_square_of_the_temperature() -> None:
    student, teacher = torch.randn(4, 3, 7), torch.randn(4, 3, 7)
    expected = F.kl_div(
        F.log_softmax(student / 3, -1), F.log_softmax(teacher / 3, -1), reduction="none", log_target=True
    )
    torch.testing.assert_close(divergence(student, teacher, 3.0), 9 * expected.sum(-1))
    torch.testing.assert_close(divergence(student.mT, teacher.mT, 3.0, dim=1), 9 * expected.sum(-1))


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_a_larger_teacher_teaches_as_a_hand_written_loop(micro_batch: int | None) -> None:
    teacher, student, twin = made(Net, 9, 0.5, seed=1), made(Net), made(Net)
    taught = Distillation(teacher=teacher, share=0.3, temperature=4.0)  # type: ignore[arg-type]
    step(taught, student, micro_batch=micro_batch)(data := window())
    teacher.eval()
    logits, labels = twin(data["numbers"]), data["labels"]
    loss = 0.7 * F.cross_entropy(logits, labels) + 0.3 * 16 * F.kl_div(
        F.log_softmax(logits / 4, -1),
        F.log_softmax(teacher(data["numbers"]).detach() / 4, -1),
        reduction="batchmean",
        log_target=True,
    )
    loss.backward()
    for own, other in zip(student.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_features_of_one_width_are_matched(micro_batch: int | None) -> None:
    teacher, student, twin = made(Net, 6, seed=1), made(Net), made(Net)
    features = {"first": "first"}
    taught = Distillation(teacher=teacher, features=features, feature_weight=2.0)  # type: ignore[arg-type]
    plain = Distillation(teacher=teacher)  # type: ignore[arg-type]
    step(taught, student, micro_batch=micro_batch)(data := window())
    step(plain, twin)(data)
    inputs = data["numbers"]
    expected = made(Net)
    (2.0 * (expected.first(inputs) - teacher.first(inputs).detach()).square().mean()).backward()
    found = student.first.weight.grad - twin.first.weight.grad
    torch.testing.assert_close(found, expected.first.weight.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(student.head.weight.grad, twin.head.weight.grad)


def test_a_feature_of_tokens_counts_for_its_token_and_for_a_row_as_their_mean() -> None:
    student, teacher = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    squares = (student - teacher).square()
    torch.testing.assert_close(feature_distance(student, teacher, (2, 3)), squares.mean(-1))
    torch.testing.assert_close(feature_distance(student, teacher, (2,)), squares.mean((1, 2)))


def test_the_teacher_stays_in_eval_mode_frozen_and_outside_of_optimizer_and_checkpoint() -> None:
    teacher = made(Net, 9, 0.5)
    before = [parameter.detach().clone() for parameter in teacher.parameters()]
    student = made(Net, seed=1)
    run = step(Distillation(teacher=teacher), student)  # type: ignore[arg-type]
    for _ in range(2):
        run(window())
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert all(torch.equal(*pair) for pair in zip(before, teacher.parameters(), strict=True))
    assert "distillation" not in run.state_dict()["techniques"]
    held = {id(parameter) for group in run.optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in student.parameters()}


def test_the_start_of_a_run_is_kept_in_its_checkpoints() -> None:
    problem = problems.reader(())
    first, second, third = problem.windows()
    technique = Distillation(teacher="start", share=0.9)
    run = make_step(problem, [technique])
    run(first), run(second)
    state = saved(run)
    resumed = make_step(problem, [technique], model_seed=5)
    resumed.load_state_dict(state)
    run(third), resumed(third)
    assert not differences(saved(run), saved(resumed))


def test_a_stock_encoder_learns_from_a_deeper_one_of_its_kind() -> None:
    from transformers import BertForSequenceClassification

    student = problems.bert(()).model(torch.float32)
    config = type(student.config).from_dict({**student.config.to_dict(), "num_hidden_layers": 3})
    teacher = BertForSequenceClassification(config)
    features = {"bert.encoder.layer.0": "bert.encoder.layer.2"}
    taught = Distillation(teacher=teacher, features=features, temperature=1.0, share=1.0)  # type: ignore[arg-type]
    run = Step(student, find("adamw")(learning_rate=3e-3), techniques=[taught], micro_batch=4)
    windows = problems.bert(()).windows(torch.float32)
    losses = [[run(window).loss for window in windows] for _ in range(12)]
    assert sum(losses[-1]) < 0.5 * sum(losses[0])


def test_a_frozen_teacher_in_half_precision_gives_nearly_the_same() -> None:
    data = {"numbers": window()["numbers"].float(), "labels": window()["labels"]}
    gradients = []
    for dtype in (None, "bfloat16"):
        student = made(Net).float()
        teacher = made(Net, 9, seed=1).float()
        taught = Distillation(teacher=teacher, share=1.0, dtype=dtype)  # type: ignore[arg-type]
        run = Step(
            student,
            torch.optim.SGD(student.parameters(), lr=0.1),
            techniques=[taught],
        )
        run(data)
        gradients.append(problems.gradients(run))
    assert 0 < relative_error(*gradients) < 0.1


def test_beside_pure_bf16_the_start_is_in_bf16_and_gets_its_inputs_in_it() -> None:
    data = {"numbers": window()["numbers"].float(), "labels": window()["labels"]}
    seen: list[torch.dtype] = []

    class Noting(Net):
        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            seen.append(numbers.dtype)
            return super().forward(numbers)

    techniques = [find("pure_bf16")(), Distillation(teacher="start", share=1.0)]
    run = Step(made(Noting).float(), find("sgd")(learning_rate=0.1), techniques=techniques)
    first = run(data).loss
    assert seen == [torch.bfloat16] * 2, "the student, and its teacher"
    assert first == 0.0, "both are the same at first, rounding included"
    run(data)


def test_a_teacher_of_other_labels_is_refused_with_both_shapes() -> None:
    run = step(Distillation(teacher=made(Net, 6, 0.0, 4)), made(Net))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"distillation\.teacher: its scores .* \(7, 4\) .* \(7, 3\)"):
        run(window())
    features = {"first": "first"}
    run = step(Distillation(teacher=made(Net, 9), features=features), made(Net))  # type: ignore[arg-type]
    message = r"features: 'first' has .* \(7, 6\) .* \(7, 9\) .* Learn .*projections: {first: \[6, 9\]}"
    with pytest.raises(SettingError, match=message):
        run(window())


def projected(teacher: nn.Module | None = None, width: int = 6) -> Distillation:
    return Distillation(
        teacher=teacher or made(Net, 9, seed=1),  # type: ignore[arg-type]
        features={"first": "first"},
        feature_weight=2.0,
        projections={"first": (width, 9)},
    )


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_features_of_other_widths_are_matched_through_a_map_that_learns(micro_batch: int | None) -> None:
    teacher, student, twin, expected = made(Net, 9, seed=1), made(Net), made(Net), made(Net)
    taught = step(projected(teacher), student, micro_batch=micro_batch)
    plain = step(Distillation(teacher=teacher), twin)  # type: ignore[arg-type]
    projection = student.distillation_projections.of_first  # type: ignore[union-attr]
    weight = projection.weight.detach().clone().requires_grad_()
    bias = projection.bias.detach().clone().requires_grad_()
    taught(data := window())
    plain(data)
    inputs = data["numbers"]
    own = expected.first(inputs) @ weight.T + bias
    (2.0 * (own - teacher.first(inputs).detach()).square().mean()).backward()
    for found, other in ((projection.weight, weight), (projection.bias, bias)):
        torch.testing.assert_close(found.grad, other.grad, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found, other - 0.1 * other.grad, rtol=1e-9, atol=1e-12)
    difference = student.first.weight.grad - twin.first.weight.grad
    torch.testing.assert_close(difference, expected.first.weight.grad, rtol=1e-9, atol=1e-12)


def test_the_map_is_in_checkpoints_and_not_in_what_is_delivered() -> None:
    steps = [step(projected(), made(Net)) for _ in range(2)]
    first, second = steps
    first(window())
    state = saved(first)
    assert not torch.equal(
        first.model.distillation_projections.of_first.weight,  # type: ignore[union-attr, arg-type]
        second.model.distillation_projections.of_first.weight,  # type: ignore[union-attr, arg-type]
    )
    second.load_state_dict(state)
    first(window())
    second(window())
    assert not differences(saved(first), saved(second))
    assert first.seams.export is not None
    delivered = first.seams.export(first.model)
    assert delivered.state_dict().keys() == Net().state_dict().keys()
    assert "distillation_projections.of_first.weight" in first.model.state_dict()
    inputs = window()["numbers"]
    assert torch.equal(delivered(inputs), first.model(inputs))


def test_a_map_beside_adapters_learns_and_no_adapter_is_put_on_it() -> None:
    student = made(Net).float()
    teacher = made(Net, 9, seed=1).float()
    run = Step(student, find("adamw")(), techniques=[projected(teacher), find("lora")(targets=("first",))])
    before = {name: each.detach().clone() for name, each in run.model.named_parameters()}
    assert run({"numbers": window()["numbers"].float(), "labels": window()["labels"]}).applied
    moved = {name for name, each in run.model.named_parameters() if not torch.equal(before[name], each)}
    assert "distillation_projections.of_first.weight" in moved
    assert not any("lora" in name for name in moved if name.startswith("distillation"))
    assert not any(name.startswith("head") for name in moved)


def test_the_channels_of_pictures_are_projected_and_their_places_stay() -> None:
    projection = nn.Linear(3, 5)
    picture = torch.randn(2, 3, 4, 4)
    found = _projected("block", projection, picture)
    torch.testing.assert_close(found, F.conv2d(picture, projection.weight[:, :, None, None], projection.bias))
    tokens = torch.randn(2, 7, 3)
    torch.testing.assert_close(_projected("block", projection, tokens), projection(tokens))


def test_a_map_of_another_width_is_refused_with_the_right_one() -> None:
    with pytest.raises(SettingError, match=r"projections: 'first' is of width 7 there, .* Give 6\."):
        step(projected(width=7), made(Net))(window())
    taught = Distillation(teacher="start", features={"0": "0"}, projections={"0": (3, 4)})
    with pytest.raises(SettingError, match=r"projections: are learned beside .* a Sequential"):
        step(taught, nn.Sequential(nn.Linear(5, 3)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"teacher": "start", "projections": {"a": (2, 3)}}, "distillation.projections: must be names of"),
        ({"teacher": "start", "share": 0.0}, "distillation.share: must be above 0"),
        ({"teacher": "start", "temperature": 0.0}, "distillation.temperature: must be positive"),
        ({"teacher": "start", "dtype": "int8"}, "distillation.dtype: must be float32"),
        ({"teacher": "start", "features": ["a"]}, "distillation.features: must be module names"),
        ({"teacher": "start", "teacher_techniques": (find("ema")(),)}, "'ema' has to do with updates"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Distillation(**settings)


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        ("models/large", "only a recipe for texts can load one"),
        ("math:sqrt", r"distillation\.teacher: 'math:sqrt' failed: TypeError"),
        ("nowhere.at.all:model", "there is no module 'nowhere'"),
    ],
)
def test_a_teacher_that_cannot_be_had_is_refused(teacher: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Distillation(teacher=teacher).seams(Context(Net(), torch.device("cpu")))


def test_a_recipe_may_give_the_teacher_techniques_of_its_own() -> None:
    entry = {"distillation": {"teacher": "start", "teacher_techniques": ({"fp32_logits": {}},)}}
    (technique,) = parse_list((entry,), Places())
    assert dataclasses.asdict(technique)["teacher"] == "start"
    student = made(Net).float()
    run = Step(student, torch.optim.SGD(student.parameters(), lr=0.1), techniques=[technique])
    assert run({"numbers": window()["numbers"].float(), "labels": window()["labels"]}).applied


def test_two_that_share_the_loss_with_something_else_are_told_apart() -> None:
    step(Distillation(teacher="start"), made(Net))
    with pytest.raises(PlanConflict, match="'distillation' is given twice"):
        Step(made(Net), None, techniques=[Distillation(teacher="start"), Distillation(teacher="start")])
