from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from snugfit.kit.batch_norm import NormStatistics

CPU = torch.device("cpu")


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.BatchNorm1d(4, momentum=0.3))


def windows(count: int = 4) -> list[Tensor]:
    source = torch.Generator().manual_seed(1)
    return [2 + 3 * torch.randn(5, 3, generator=source) for _ in range(count)]


def passes(model: nn.Module, batches: Sequence[Tensor]) -> Iterator[None]:
    for batch in batches:
        with torch.no_grad():
            model(batch)
        yield


def estimated(model: nn.Module, batches: Sequence[Tensor], count: int = 100) -> dict[str, Tensor]:
    statistics = NormStatistics(CPU, count)
    statistics.estimate(model, passes(model, batches))
    return statistics.state_dict()


def test_statistics_are_bit_for_bit_those_of_update_bn() -> None:
    model, reference = normed(), normed()
    model(windows()[0])  # what was counted before does not matter
    update_bn(windows(), reference)
    found = estimated(model, windows())
    expected = dict(reference.named_buffers())
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_no_more_windows_are_run_than_asked_for() -> None:
    model, reference, given = normed(), normed(), iter(windows())
    update_bn(windows()[:2], reference)
    statistics = NormStatistics(CPU, 2)
    statistics.estimate(model, passes(model, given))  # type: ignore[arg-type]
    assert torch.equal(statistics.state_dict()["1.running_var"], reference[1].running_var)
    assert len(list(given)) == 2


def test_a_single_window_is_enough() -> None:
    model, reference = normed(), normed()
    update_bn(windows(1), reference)
    assert torch.equal(estimated(model, windows(), count=1)["1.running_mean"], reference[1].running_mean)


def test_a_model_without_batch_norm_runs_no_window() -> None:
    def never() -> Iterator[None]:
        raise AssertionError
        yield

    for model, count in ((nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), 5), (normed(), 0)):
        statistics = NormStatistics(CPU, count)
        statistics.estimate(model, never())
        assert statistics.buffers_and_estimates(model) == ([], [])


def test_a_frozen_batch_norm_and_one_without_statistics_are_left_alone() -> None:
    model = normed()
    model.append(nn.BatchNorm1d(4, track_running_stats=False))
    model[1].eval()
    before = model[1].running_mean.clone()
    assert {name.partition(".")[0] for name in estimated(model, windows())} == {"3"}
    assert torch.equal(model[1].running_mean, before)


def test_a_batch_norm_that_no_window_reaches_keeps_its_own() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

        def forward(self, inputs: Tensor) -> Tensor:
            result: Tensor = self.used(inputs)
            return result

    assert {name.partition(".")[0] for name in estimated(Half(), windows())} == {"used"}


def test_momentum_is_given_back_when_a_window_fails() -> None:
    def fails() -> Iterator[None]:
        raise ZeroDivisionError
        yield

    model = normed()
    with pytest.raises(ZeroDivisionError):
        NormStatistics(CPU, 2).estimate(model, fails())
    assert (model[1].momentum, model[3].momentum) == (0.1, 0.3)


def test_an_estimate_replaces_the_one_before() -> None:
    model = normed()
    statistics = NormStatistics(CPU, 100)
    statistics.estimate(model, passes(model, windows()))
    model[1].eval()
    statistics.estimate(model, passes(model, windows()))
    assert {name.partition(".")[0] for name in statistics.state_dict()} == {"3"}


def test_statistics_stand_beside_the_buffers_they_are_for_and_survive_a_stop() -> None:
    model = normed()
    statistics, again = NormStatistics(CPU, 100), NormStatistics(CPU, 100)
    statistics.estimate(model, passes(model, windows()))
    again.load_state_dict(statistics.state_dict())
    buffers, found = again.buffers_and_estimates(model)
    assert [id(buffer) for buffer in buffers] == [id(buffer) for buffer in model.buffers()]
    expected = list(statistics.state_dict().values())
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
