from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import causal_lm
from snugfit.core.random import derive_seed
from snugfit.core.tree import leaves
from snugfit.errors import OutOfMemory, PlanConflict, SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.gradient_cache import GradientCache, cached_terms
from tests.laws.material import gpt2
from tests.laws.models import LONGEST, VOCABULARY
from tests.laws.problems import gradients as gradients_of
from tests.laws.problems import relative_error


def info_nce(outputs: Any, data: Any) -> LossTerms:
    query, key = outputs[0], outputs[1]
    scores = query @ key.T
    return LossTerms(nn.functional.cross_entropy(scores, torch.arange(len(scores)), reduction="none"))


class Towers(nn.Module):
    """Two embeddings, a number a row and a shape that is not floating."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(3, 4), nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = torch.arange(len(numbers))
        return self.query(numbers), self.key(numbers), self.scale.expand(len(numbers)), rows


def numbers(rows: int = 6) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def towers() -> Towers:
    torch.manual_seed(1)
    return Towers().double()


def gradients(loss: Any, micro_batch: int | None, cached: bool) -> dict[str, Tensor]:
    model = towers()
    techniques = [GradientCache()] if cached else []
    Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, techniques, micro_batch=micro_batch)(
        numbers()
    )
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def scaled_info_nce(outputs: Any, data: Any) -> LossTerms:
    query, key, scale, rows = outputs
    assert not rows.is_floating_point()
    return info_nce((query * scale.exp().unsqueeze(1), key), data)


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_a_coupling_loss_has_the_gradient_of_the_whole_window(micro_batch: int) -> None:
    """A temperature that the model returns for each row learns as well."""
    whole = gradients(scaled_info_nce, None, cached=False)
    cached = gradients(scaled_info_nce, micro_batch, cached=True)
    without = gradients(scaled_info_nce, micro_batch, cached=False)
    assert set(whole) == set(cached) == {"query.weight", "query.bias", "key.weight", "key.bias", "scale"}
    for name, expected in whole.items():
        torch.testing.assert_close(cached[name], expected, rtol=1e-10, atol=1e-14)
    assert not torch.allclose(without["query.weight"], whole["query.weight"], rtol=0.01), (
        "the loss does not couple"
    )


def test_a_weight_that_the_loss_uses_beside_the_outputs_is_refused() -> None:
    """Its gradient would be lost without a word."""
    model = towers()

    def loss(outputs: Any, data: Any) -> LossTerms:
        return info_nce((outputs[0] * model.scale.exp(), outputs[1]), data)

    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, [GradientCache()], micro_batch=2)
    with pytest.raises(PlanConflict, match=r"gradient_cache: .* uses the weight 'scale' .* one entry a row"):
        step(numbers())


def test_outputs_of_another_shape_in_each_micro_batch_are_refused() -> None:
    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, numbers: Tensor) -> Tensor:
            return numbers[:, : len(numbers)] * self.weight

    model = Ragged()
    step = Step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), info_nce, [GradientCache()], micro_batch=2
    )
    with pytest.raises(PlanConflict, match="outputs of different micro-batches cannot be joined"):
        step(numbers(3).float())


@pytest.mark.parametrize("loss", ["causal_lm", "coupled"])
def test_texts_of_unequal_length_may_be_cut_to_other_widths_in_each_micro_batch(loss: str) -> None:
    def of_all_rows(outputs: Any, data: Any) -> LossTerms:
        values = causal_lm(outputs, data)
        mean = values.weighted_sum() / values.weight()
        return LossTerms((values.values - mean) ** 2, values.weights)

    of_all_rows.couples_rows = True
    lengths = torch.tensor([3, 2, 5, 3, 2, 4])
    mask = (torch.arange(LONGEST) < lengths.unsqueeze(1)).long()
    ids = torch.randint(1, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    window = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    steps = []
    for micro_batch, techniques in ((None, []), (2, [GradientCache()])):
        torch.manual_seed(0)
        model = gpt2(dropout=0.0).double()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_function = of_all_rows if loss == "coupled" else causal_lm
        steps.append(Step(model, sgd, loss_function, techniques, micro_batch=micro_batch))
    results = [step(window) for step in steps]
    assert results[1].loss == pytest.approx(results[0].loss, rel=1e-10)
    assert relative_error(gradients_of(steps[1]), gradients_of(steps[0])) <= 1e-10
    scores = [evaluate(Scored.of(step), [Batch.of(window)], {})["loss"] for step in steps]
    assert scores[1] == pytest.approx(scores[0], rel=1e-10)


def test_running_out_of_memory_while_joining_is_not_mistaken_for_a_conflict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError

    model = towers()
    step = Step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), scaled_info_nce, [GradientCache()], micro_batch=2
    )
    monkeypatch.setattr(torch, "cat", full)
    with pytest.raises(OutOfMemory):
        step(numbers())


def test_the_terms_have_the_cached_gradient() -> None:
    outputs = {
        "a": torch.ones(2, 3, requires_grad=True),
        "n": torch.arange(2),
        "b": torch.ones(2, requires_grad=True),
    }
    cached = [torch.arange(6.0).view(2, 3), torch.tensor([7.0, 8.0])]
    cached_terms(outputs, cached, torch.tensor(2.5)).weighted_sum().backward()
    found = [tensor.grad for tensor in leaves(outputs) if tensor.is_floating_point()]
    for gradient, expected in zip(found, cached, strict=True):
        assert gradient is not None
        torch.testing.assert_close(gradient, expected)


def test_the_terms_of_bf16_outputs_have_a_gradient_that_is_rounded_once() -> None:
    """The weight must not be rounded to bf16 on its way back: that would be a wrong learning rate."""
    outputs = torch.ones(4, 8, dtype=torch.bfloat16, requires_grad=True)
    cached = torch.full((4, 8), 3.0, dtype=torch.bfloat16)
    terms = cached_terms(outputs, [cached], torch.tensor(1.0))
    terms.values.backward(terms.gradient(torch.tensor(259.0)))
    assert outputs.grad is not None
    assert torch.equal(outputs.grad, torch.full((4, 8), 3.0 / 259.0).bfloat16())


def test_an_empty_window_has_the_loss_zero_and_is_not_applied() -> None:
    model = towers()
    nothing = lambda outputs, data: LossTerms(outputs[0].sum(dim=1), torch.zeros(len(outputs[0])).double())  # noqa: E731
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), nothing, [GradientCache()], micro_batch=2)
    result = step(numbers())
    assert not result.applied and result.loss == 0.0 and result.weight == 0.0


def test_a_loss_that_is_infinite_where_its_gradient_is_not_is_skipped_as_without_the_cache() -> None:
    def loss(outputs: Any, data: Any) -> LossTerms:
        return LossTerms(outputs[0].sum(dim=1) + torch.tensor(float("inf")))

    for techniques in ([], [GradientCache()]):
        model = towers()
        step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, techniques, micro_batch=2)
        assert not step(numbers()).applied


# the built-in contrastive loss


class Dropping(nn.Module):
    """Two views of each row, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 8))

    def forward(self, numbers: Tensor) -> Tensor:
        views: Tensor = self.body(numbers).view(-1, 2, 4)
        return views


def dropping() -> Dropping:
    torch.manual_seed(2)
    return Dropping().double()


@pytest.mark.parametrize("loss", ["info_nce", "info_nce_symmetric"])
@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_with_dropout_it_is_the_gradient_of_one_graph_over_the_whole_window(
    loss: str, micro_batch: int
) -> None:
    """Gao et al. 2021: the same as if every row's graph were held, each micro-batch under the draws it has in the step."""
    model = dropping()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = Step(model, optimizer, loss, [GradientCache()], micro_batch=micro_batch)
    result = step(numbers())

    whole = dropping()
    parts = []
    for number, rows in enumerate(numbers().split(micro_batch)):
        torch.manual_seed(derive_seed(0, "layers", 0, number, 0))
        parts.append(whole(rows))
    query, key = (nn.functional.normalize(side, dim=1) for side in torch.cat(parts).unbind(1))
    scores, own = query @ key.T / 0.05, torch.arange(6)
    expected = nn.functional.cross_entropy(scores, own)
    if loss == "info_nce_symmetric":
        expected = (expected + nn.functional.cross_entropy(scores.T, own)) / 2
    expected.backward()
    assert result.loss == pytest.approx(expected.item(), rel=1e-12)
    for found, wanted in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-9, atol=1e-13)


def test_without_the_cache_a_window_of_compared_rows_is_not_cut() -> None:
    """Each micro-batch would have its own negatives only: another gradient, without a word."""
    model = dropping()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), "info_nce", micro_batch=4)
    with pytest.raises(
        SettingError, match=r"loss: compares the rows .* of 4 .* of the 6 rows.*'gradient_cache'"
    ):
        step(numbers())
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
    assert step(numbers(4)).applied


def test_somebodys_own_loss_says_by_an_attribute_that_it_compares_rows() -> None:
    def own(outputs: Any, data: Any) -> LossTerms:
        return info_nce(outputs, data)

    own.couples_rows = True  # type: ignore[attr-defined]
    model = towers()
    with pytest.raises(SettingError, match="'gradient_cache'"):
        Step(model, torch.optim.SGD(model.parameters(), lr=0.1), own, micro_batch=2)(numbers())


def test_a_gradient_too_small_for_fp16_is_cached_all_the_same() -> None:
    """The loss scale of fp16 comes in behind the cache, so that what is cached has to hold small numbers by itself."""

    def loss(outputs: Any, data: Any) -> Tensor:
        return 1e-8 * outputs.float().sum(dim=1)

    model, inputs = nn.Linear(3, 4), numbers().float()
    techniques = [GradientCache(), find("fp16")(initial_scale=2.0**16)]
    Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, techniques, micro_batch=2)(inputs)
    assert model.weight.grad is not None
    expected = 1e-8 * inputs.mean(dim=0).expand(4, 3)
    torch.testing.assert_close(model.weight.grad, expected, rtol=1e-2, atol=0)  # products in fp16
