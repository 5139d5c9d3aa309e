"""A setup gives steps as a run has them, and keeps what it is made of as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import snugfit as sf
from snugfit.errors import DataError
from snugfit.results.tool_results import keep, new_folder, results
from snugfit.tools.setup import module_setup


def data(rows: int = 10) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(rows, 4, generator=generator), torch.arange(rows) % 3)


def test_steps_train_copies_and_the_model_stays_as_it_was() -> None:
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    setup = module_setup(model, data(), optimizer=sf.SGD(learning_rate=1.0), global_batch=4)
    first, second = setup.step(), setup.step()
    for window in setup.loader().windows(0, 2):
        first(window)
    assert torch.equal(model.weight, before) and torch.equal(second.model.weight, before)
    assert not torch.equal(first.model.weight, before)


def test_a_torch_optimizer_goes_along_with_the_copy() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = module_setup(model, data(), optimizer=optimizer, global_batch=4).step()
    (group,) = step.optimizer.param_groups
    assert {id(each) for each in group["params"]} == {id(each) for each in step.model.parameters()}
    assert step.optimizer is not optimizer


def test_a_loader_gives_its_data_batch_size_and_collate() -> None:
    def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([row for row, _ in rows]) * 2, torch.stack([label for _, label in rows])

    loader = DataLoader(data(), batch_size=5, collate_fn=collate)
    setup = module_setup(nn.Linear(4, 3), loader, updates=2)
    assert setup.job.train.global_batch == 5 and setup.windows == 2
    window = next(setup.loader().windows(0, 1))
    assert torch.equal(window.data[0], loader.dataset.tensors[0][list(window.ids)] * 2)


def test_a_loader_that_makes_its_own_batches_is_refused() -> None:
    own = DataLoader(data(), batch_sampler=[[0, 1], [2, 3]])
    with pytest.raises(DataError, match="a batch sampler of its own"):
        module_setup(nn.Linear(4, 3), own)


def test_what_was_found_is_kept_newest_first(tmp_path) -> None:
    for number in range(2):
        folder = new_folder(tmp_path, "mine", "find_lr")
        keep(folder, "find_lr", {"recipe": "abc"}, f"number {number}", {"number": number})
        folder.rename(folder.with_name(f"{number}"))
    (new_folder(tmp_path, "mine", "profile") / "found.json").write_text("{torn")
    found = [(folder.name, each["number"], each["identity"]) for folder, each in results(tmp_path, "mine")]
    assert found == [("1", 1, {"recipe": "abc"}), ("0", 0, {"recipe": "abc"})]
