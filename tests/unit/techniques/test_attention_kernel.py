from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from transformers.integrations.flex_attention import flex_attention_forward

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.techniques.placement.attention_kernel import AttentionKernel, kernels_used
from tests.laws import problems
from tests.unit.techniques.settings import context

BATCH = Batch.of(torch.zeros(1))


def used_by(kernel: str, model: nn.Module, query: Tensor) -> set[str]:
    technique = AttentionKernel(kernel=kernel)
    seams = technique.seams(context(technique.prepare(model)))
    assert seams.modules is not None
    with seams.modules(BATCH), kernels_used() as used:
        F.scaled_dot_product_attention(query, query, query)
    return used


def test_an_unknown_kernel_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        SettingError, match=r"attention_kernel.kernel: there is no 'flahs'. Did you mean 'flash'"
    ):
        AttentionKernel(kernel="flahs")


@pytest.mark.parametrize("kernel", ["math", "flash"])
def test_a_torch_kernel_is_the_one_that_runs(kernel: str) -> None:
    assert used_by(kernel, nn.Linear(2, 2), torch.randn(1, 2, 4, 8)) == {kernel}


def test_a_kernel_that_cannot_run_here_is_refused_with_the_way_out() -> None:
    query = torch.randn(1, 2, 4, 8)
    with pytest.raises(
        SettingError, match="'cudnn' cannot compute this model's attention on cpu.* Use 'sdpa'"
    ):
        used_by("cudnn", nn.Linear(2, 2), query)
    assert used_by("flash", nn.Linear(2, 2), query) == {"flash"}, "the restriction has stayed behind"


def with_dropout(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return flex_attention_forward(nn.Module(), query, key, value, None, dropout=0.1)


@pytest.mark.parametrize(
    ("attend", "words"),
    [
        (flex_attention, "'flex_attention' has no backward on cpu, by torch. Use 'sdpa'"),
        (with_dropout, "'flex_attention' drops no scores, .* Set its attention_dropout to 0, or use 'sdpa'"),
    ],
    ids=["backward", "dropout"],
)
def test_what_flex_attention_does_not_compute_is_refused_with_the_way_out(
    attend: Callable[[Tensor, Tensor, Tensor], Any], words: str
) -> None:
    seams = AttentionKernel(kernel="flex_attention").seams(context())
    query = torch.randn(1, 2, 4, 8, requires_grad=True)
    assert seams.modules is not None
    with pytest.raises(SettingError, match=words), seams.modules(BATCH):
        attend(query, query, query)


def test_other_errors_of_the_model_pass_through() -> None:
    seams = AttentionKernel(kernel="math").seams(context())
    assert seams.modules is not None
    with pytest.raises(RuntimeError, match="of the model itself"), seams.modules(BATCH):
        raise RuntimeError("of the model itself")


def test_an_implementation_of_transformers_is_refused_for_another_model() -> None:
    with pytest.raises(
        SettingError, match="'eager' is an implementation of transformers, and Linear is no model"
    ):
        AttentionKernel(kernel="eager").prepare(nn.Linear(2, 2))


def test_an_implementation_that_is_not_installed_is_refused() -> None:
    with pytest.raises(SettingError, match="attention_kernel.kernel: 'flash_attention_2' cannot be used"):
        AttentionKernel(kernel="flash_attention_2").prepare(problems.bert(()).model())


@pytest.mark.parametrize("make", [problems.bert, problems.gpt2, problems.vit])
def test_stock_models_train_alike_in_each_implementation_and_use_what_was_asked_for(
    make: problems.Maker,
) -> None:
    gradients = {}
    problem = make(())
    window = problem.windows()[0]
    for kernel, expected in (("eager", "math"), ("sdpa", "flash"), ("math", "math"), ("flash", "flash")):
        step = problems.make_step(problem, (AttentionKernel(kernel=kernel),))
        with kernels_used() as used:
            step(window)
        assert expected in used
        assert (expected == "flash") == ("flash" in used)
        gradients[kernel] = problems.gradients(step)
    for kernel, found in gradients.items():
        # the eager softmax of some models is in float32, whatever the model is in
        tolerance = 1e-6 if kernel == "eager" else 1e-10
        assert problems.relative_error(found, gradients["sdpa"]) <= tolerance


def test_a_torch_kernel_is_used_by_a_model_that_was_loaded_with_eager_attention() -> None:
    problem = problems.bert(())
    model = AttentionKernel(kernel="eager").prepare(problem.model())
    window = {name: value for name, value in problem.windows()[0].items() if name != "labels"}
    for kernel, expected in ((None, {"math"}), ("flash", {"flash"})):
        if kernel is not None:
            AttentionKernel(kernel=kernel).prepare(model)
        with kernels_used() as used:
            model(**window)
        assert used == expected


def test_a_model_that_keeps_its_own_implementation_is_refused() -> None:
    class Stubborn(nn.Module):
        config = type("Config", (), {"_attn_implementation": "eager"})

        def set_attn_implementation(self, name: str) -> None:
            """Transformers logs a warning and changes nothing."""

    with pytest.raises(SettingError, match="Stubborn keeps 'eager' and cannot use 'sdpa'. Remove it"):
        AttentionKernel(kernel="sdpa").prepare(Stubborn())
