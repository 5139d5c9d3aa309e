from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.progress import Progress
from snugfit.core.selection import check
from snugfit.errors import DataError, PlanConflict, SettingError
from snugfit.kit.mixing import mix, partners, share_of
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.step.window_gradients import WindowCompute
from snugfit.techniques.learning.gradient_cache import GradientCache
from snugfit.techniques.learning.hard_examples import HardExamples
from snugfit.techniques.learning.hidden_mixup import HiddenMixup, mixed_at
from tests.laws import problems
from tests.unit.techniques.settings import context, refuses

SHARE = torch.tensor([0.75, 0.75, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_alpha_is_refused(value: float) -> None:
    refuses(HiddenMixup, alpha=value)


def step_of(model: nn.Module, at: str | None, micro_batch: int | None = None, **more: Any) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    techniques = [HiddenMixup(alpha=1.0, at=at), *more.pop("techniques", [])]
    return Step(model, optimizer, techniques=techniques, micro_batch=micro_batch, **more)


def shares(step: Step, window: Any) -> Tensor:
    share = share_of(step.seams.batch(Batch.of(window), step.progress, step.seed))
    assert share is not None
    return share.double()


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def bert_window() -> dict[str, Tensor]:
    window = problems.bert(()).windows()[0]
    window["labels"] = window["labels"].clamp(min=0)
    return window


def bert_loss(logits: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    own, other = (F.cross_entropy(logits, y, reduction="none") for y in (labels, partners(labels)))
    return (share * own + (1 - share) * other).mean()


def at_the_head(model: Any, window: Any, share: Tensor) -> Tensor:
    pooled = model.bert(window["input_ids"], attention_mask=window["attention_mask"]).pooler_output
    return bert_loss(model.classifier(mix(pooled, share)), window["labels"], share)


def at_the_embeddings(model: Any, window: Any, share: Tensor) -> Tensor:
    """Every text of a pair sees the tokens of both."""
    words = mix(model.bert.embeddings.word_embeddings(window["input_ids"]), share)
    mask = window["attention_mask"] | partners(window["attention_mask"])
    return bert_loss(model(inputs_embeds=words, attention_mask=mask).logits, window["labels"], share)


@pytest.mark.parametrize(
    ("at", "by_hand"),
    [
        (None, at_the_head),
        ("classifier", at_the_head),
        ("embeddings", at_the_embeddings),
        ("bert.embeddings.word_embeddings", at_the_embeddings),
    ],
)
@pytest.mark.parametrize("micro_batch", [None, 2, 3])
def test_a_stock_encoder_trains_as_the_loop_that_mixes_by_hand(
    at: str | None, by_hand: Callable[..., Tensor], micro_batch: int | None
) -> None:
    """Where padding is cut in a micro-batch, the pair keeps the longer one's tokens."""
    window = bert_window()
    step = step_of(problems.bert(()).model(), at, micro_batch)
    share = shares(step, window)
    result = step(window)
    model = problems.bert(()).model()
    expected = by_hand(model, window, share)
    expected.backward()
    assert result.loss == pytest.approx(float(expected.detach()), rel=1e-12)
    for found, wanted in zip(step.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-9, atol=1e-13)


def test_the_pair_is_as_long_as_its_longer_text_where_the_embeddings_are_mixed() -> None:
    window = Batch.of(bert_window())
    mixed = step_of(problems.bert(()).model(), "embeddings").seams.batch(window, Progress(), 0)
    assert window.lengths is not None and mixed.lengths is not None
    lengths = torch.tensor(window.lengths)
    assert mixed.lengths == tuple(torch.maximum(lengths, partners(lengths)).tolist()) != window.lengths
    assert torch.equal(mixed.data["attention_mask"].sum(dim=1), torch.tensor(mixed.lengths))


def test_a_module_in_the_middle_is_mixed_at_its_first_floating_input() -> None:
    class Between(nn.Module):
        def forward(self, rows: Tensor, hidden: Tensor) -> Tensor:
            return hidden * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.between, self.head = nn.Linear(3, 4), Between(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            rows = torch.arange(len(x))
            return self.head(torch.tanh(self.between(rows, hidden=self.body(x))))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Model().double()
    x, labels = torch.randn(5, 3).double(), torch.tensor([0, 1, 1, 0, 1])
    step = step_of(model, "between")
    share = shares(step, (x, labels))
    expected = bert_loss(model.head(torch.tanh(2 * mix(model.body(x), share))), labels, share)
    assert step((x, labels)).loss == pytest.approx(float(expected.detach()))


def test_nothing_is_left_behind_when_the_model_or_the_loss_raises() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.fails = nn.Linear(3, 2), False

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(x)
            if self.fails:
                raise RuntimeError("broken")
            return logits

    model = Failing()
    step = step_of(model, None)
    batch = (torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    assert step(batch).applied and hooks(model) == 0
    model.fails = True
    with pytest.raises(RuntimeError, match="broken"):
        step(batch)
    assert hooks(model) == 0
    model.fails = False
    with pytest.raises(DataError, match="Give labels from 0 to 1"):
        step((batch[0], torch.tensor([0, 1, 1, 7])))
    assert hooks(model) == 0


@pytest.mark.parametrize("module", [nn.Identity(), nn.Embedding(4, 2).double()])
def test_the_hook_is_there_within_the_context_only(module: nn.Module) -> None:
    given = torch.arange(3) if isinstance(module, nn.Embedding) else torch.randn(3, 2).double()
    plain = module(given)
    with mixed_at(module, SHARE):
        assert hooks(module) == 1
        torch.testing.assert_close(module(given), mix(plain, SHARE))
    assert hooks(module) == 0
    assert torch.equal(module(given), plain)
    with pytest.raises(ValueError, match="stop"), mixed_at(module, SHARE):
        raise ValueError("stop")
    assert hooks(module) == 0


def test_an_evaluation_is_plain() -> None:
    model, window = problems.bert(()).model(), bert_window()
    found = []
    for at in (None, "embeddings"):
        step = step_of(model, at)
        found.append(evaluate(Scored.of(step), [Batch.of(window)], {})["loss"])
    model.eval()
    expected = F.cross_entropy(
        model(window["input_ids"], attention_mask=window["attention_mask"]).logits, window["labels"]
    )
    assert found == pytest.approx([float(expected.detach())] * 2)


def test_a_micro_batch_of_one_row_is_refused() -> None:
    with pytest.raises(SettingError, match=r"micro_batch: is 1, and examples are mixed in groups of 2"):
        step_of(problems.bert(()).model(), None, micro_batch=1)(bert_window())


@pytest.mark.parametrize("rows", [1, 3])
def test_parts_that_would_cut_a_pair_are_refused(rows: int) -> None:
    """Such as those of SAM: rows would be mixed with a partner whose label they do not have."""
    step, window = step_of(problems.bert(()).model(), None), Batch.of(bert_window())
    transformed = step.seams.batch(window, step.progress, step.seed)
    compute = WindowCompute(step, transformed, step.seams.loss)
    with pytest.raises(SettingError, match=f"parts of {rows} rows would cut the groups of 2 examples"):
        next(compute.parts(rows))


def test_single_rows_cannot_be_chosen() -> None:
    with pytest.raises(PlanConflict, match="a mixed row needs its partner beside it"):
        check([HiddenMixup(), HardExamples()])


@pytest.mark.parametrize("micro_batch", [2, 3, 4])
def test_with_the_gradient_cache_the_whole_window_is_contrasted(micro_batch: int) -> None:
    """Pairs stay together in both passes, and the loss over the whole window pairs the same rows."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(7, 3).double(), torch.tensor([0, 1, 0, 1, 0, 1, 0])

    def loss(outputs: Any, data: Any) -> LossTerms:
        scores = outputs @ outputs.T
        values = F.cross_entropy(scores, torch.arange(len(scores)).roll(1), reduction="none")
        return LossTerms(values + F.cross_entropy(outputs, data[1], reduction="none"))

    found = []
    for size, techniques in ((None, []), (micro_batch, [GradientCache()])):
        torch.manual_seed(1)
        model = nn.Linear(3, 2).double()
        step_of(model, None, size, loss=loss, techniques=techniques)((inputs, labels))
        found.append(model.weight.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-14)


def test_a_head_whose_token_scores_are_chosen_from_afterwards_is_refused() -> None:
    """GPT2ForSequenceClassification takes each text's own last token: its partner's is at another place."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(
        vocab_size=11, n_positions=9, n_embd=8, n_layer=1, n_head=2, pad_token_id=0, num_labels=3
    )
    model = GPT2ForSequenceClassification(config).double()
    with pytest.raises(
        SettingError, match=r"hidden_mixup\.at: the last linear layer gets \(7, \d, 8\).*at: embeddings"
    ):
        step_of(model, None)(bert_window())
    assert hooks(model) == 0
    assert step_of(model, "embeddings")(bert_window()).applied


def test_a_module_that_the_model_does_not_call_is_refused() -> None:
    """Else labels were mixed and inputs were not."""
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_module("unused", nn.Linear(2, 2))
    with pytest.raises(SettingError, match=r"hidden_mixup\.at: the model did not call '0\.unused'"):
        step_of(model, "0.unused")((torch.randn(4, 3), torch.tensor([0, 1, 1, 0])))


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("classifierr", "'classifierr' matches no module of the model. Did you mean 'classifier'?"),
        ("bert.embeddings.LayerNorm.weight", "matches no module"),
        (
            "LayerNorm",
            r"matches \d+ modules, such as 'bert.embeddings.LayerNorm' and .* Give more of its name",
        ),
    ],
)
def test_a_module_that_does_not_exist_is_refused_before_anything_runs(at: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        HiddenMixup(at=at).seams(context(problems.bert(()).model()))


def test_a_model_that_does_not_name_its_embeddings_is_refused() -> None:
    with pytest.raises(SettingError, match="Linear does not say which are its embeddings"):
        HiddenMixup(at="embeddings").seams(context(nn.Linear(2, 2)))
    with pytest.raises(SettingError, match="the model has no linear layer"):
        HiddenMixup().seams(context(nn.Conv2d(1, 1, 1)))


@pytest.mark.parametrize(
    ("module", "given", "message"),
    [
        (nn.Flatten(0), torch.arange(3), "Flatten gets no floating tensor"),
        (nn.Identity(), torch.zeros(5, 2), r"has a tensor of shape \(5, 2\) for 3 rows"),
    ],
)
def test_what_is_not_of_the_rows_is_refused(module: nn.Module, given: Tensor, message: str) -> None:
    with pytest.raises(SettingError, match=message), mixed_at(module, SHARE):
        module(given)


def test_a_head_with_an_adapter_is_mixed_in_front_of_both() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer, self.low, self.high = nn.Linear(3, 2), nn.Linear(3, 1), nn.Linear(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.base_layer(x) + self.high(self.low(x))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Adapted()).double()
    x, labels = torch.randn(4, 3).double(), torch.tensor([0, 1, 1, 0])
    step = step_of(model, None)
    share = shares(step, (x, labels))
    expected = bert_loss(model[1](mix(model[0](x), share)), labels, share)
    assert step((x, labels)).loss == pytest.approx(float(expected.detach()))
