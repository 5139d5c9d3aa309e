"""The machine that a plan is for: what a run may take of its host where nobody says."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from snugfit.planner import target as targets
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.target import Target, host_memory, machine_of

GIB = 2**30
CPU = find_device("cpu")


def host_of(target: Target) -> tuple[int | None, tuple[str, ...]]:
    device = target.here or find_device(target.device or "cpu")
    return host_memory(target, Machine(device, CPU))


@pytest.mark.parametrize(
    ("device", "devices", "gib", "beside"),
    [
        ("t4", 1, 12.7, "this card"),
        ("RTX4090", 2, 128, "2 of these cards"),
        ("h100", 8, 1872, "8 of these cards"),
    ],
)
def test_a_host_that_is_not_named_is_the_usual_one_beside_the_card_and_said(
    device: str, devices: int, gib: float, beside: str
) -> None:
    found, (note,) = host_of(Target(device=device, devices=devices))

    assert found == pytest.approx(gib * GIB, abs=devices)
    assert f"usual beside {beside}; --host-memory changes it." in note


def test_beside_a_device_of_this_machine_it_is_what_is_free_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "available_bytes", lambda device: 5 * GIB)
    found, (note,) = host_of(Target(here=find_device("rtx4090")))

    assert found == 5 * GIB
    assert note == "Host memory 5 GiB: free on this machine; --host-memory changes it."


def test_it_is_bounded_where_the_system_does_not_tell_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "available_bytes", lambda device: None)

    assert host_of(Target(here=find_device("rtx4090")))[0] == CPU.memory_bytes


def test_a_host_that_is_named_is_taken_without_a_note() -> None:
    assert host_of(Target(device="h100", devices=8, host_memory=7 * GIB)) == (7 * GIB, ())


def test_a_cpu_has_one_memory() -> None:
    assert host_of(Target()) == (None, ())


def test_apples_gpu_has_one_memory_with_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "available_bytes", lambda device: 5 * GIB)
    assert host_of(Target(here=replace(CPU, kind="mps"))) == (None, ())


def test_memory_is_reserved_as_the_environment_sets_torchs_allocator_and_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "pretending_gpu", lambda *device: nullcontext())
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    with machine_of(Target(device="h100")) as machine:
        assert (machine.expandable_segments, machine.notes) == (False, ())
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:64")
    with machine_of(Target(device="h100")) as machine:
        assert machine.expandable_segments
        assert ["expandable" in note or "max_split_size_mb" in note for note in machine.notes] == [True, True]
