from __future__ import annotations

import itertools

import pytest
import torch

from snugfit.core.random import derive_seed, preserved_randomness, seed_device

CPU = torch.device("cpu")


def test_a_seed_is_the_same_in_every_process() -> None:
    """Recorded: a change would break the resume of every run that was saved before it."""
    assert derive_seed(0, "layers", 0, 0, 0) == 4386021952098862458
    assert derive_seed(7, "batch", "mixup", 3) == 8098298088415354526


def test_seeds_of_different_places_differ() -> None:
    seeds = [
        derive_seed(*parts) for parts in itertools.product(range(4), ["layers", "batch"], range(4), range(4))
    ]
    assert len(set(seeds)) == len(seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed("1") != derive_seed(1)


def test_seeds_fit_into_what_torch_takes() -> None:
    assert all(0 <= derive_seed(number) < 2**63 for number in range(100))


def test_seeding_the_device_does_what_manual_seed_does() -> None:
    with preserved_randomness(CPU):
        seed_device(123, CPU)
        found = torch.rand(4)
        torch.manual_seed(123)
        assert torch.equal(found, torch.rand(4))


def test_the_callers_state_is_given_back() -> None:
    before = torch.get_rng_state()
    with preserved_randomness(CPU):
        seed_device(1, CPU)
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_callers_state_is_given_back_after_an_error() -> None:
    before = torch.get_rng_state()

    def draw_and_fail() -> None:
        torch.rand(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), preserved_randomness(CPU):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)
