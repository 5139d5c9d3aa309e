"""The rules of torch's caching allocator, one by one, then together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.planner.cost import allocator
from snugfit.planner.cost.allocator import AllocatorSettings, Reserved, replay, reserved_bytes
from snugfit.planner.cost.records import Op, Phase, Place, Storage, Trace
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.prediction import plan_needs
from snugfit.planner.trace.dry_run import Subject
from snugfit.techniques import find

KIB, MIB = 1 << 10, 1 << 20


def script(*steps: tuple[str, int], expandable: bool = False) -> Reserved:
    """Replay steps: a name and bytes allocate, a name with 0 frees."""
    sizes: dict[str, int] = {}
    numbers: dict[str, int] = {}
    changes = []
    for name, size in steps:
        if size:
            numbers[name], sizes[name] = len(numbers), size
        changes.append((numbers[name], size or -sizes[name]))
    return replay(changes, expandable_segments=expandable)


def test_the_sizes_are_those_of_the_installed_torch() -> None:
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h"
    text = header.read_text()
    told = {name: int(value) for name, value in re.findall(r"constexpr size_t (k\w+) = (\d+);", text)}
    segment = re.search(r"large_segment_size_\{(\d+)\}", text)
    if segment is not None:  # a constant of another file before 2.12
        told["kLargeBuffer"] = int(segment.group(1))
    assert told["kMinBlockSize"] == allocator.ROUNDING
    assert told["kSmallSize"] == allocator.SMALL_REQUEST
    assert told["kSmallBuffer"] == allocator.SMALL_SEGMENT
    assert told["kLargeBuffer"] == allocator.LARGE_SEGMENT
    assert told["kMinLargeAlloc"] == allocator.LARGE_REQUEST
    assert told["kRoundLarge"] == allocator.LARGE_ROUNDING


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (1500, 1536)])
def test_a_request_is_rounded_to_512_bytes(size: int, block: int) -> None:
    assert script(("a", size)).peak_allocated == block


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),  # the largest small one
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # a multiple of 2 MiB already
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_a_segment_is_as_large_as_its_request_asks_for(size: int, segment: int) -> None:
    assert script(("a", size)).peak_reserved == segment


def test_two_small_requests_share_a_segment_and_a_third_that_does_not_fit_takes_another() -> None:
    assert script(("a", MIB), ("b", MIB)).peak_reserved == 2 * MIB
    assert script(("a", MIB), ("b", 513 * KIB), ("c", 512 * KIB)).peak_reserved == 4 * MIB


def test_a_large_request_never_comes_from_a_small_segment() -> None:
    assert script(("a", KIB), ("b", MIB + 1)).peak_reserved == 22 * MIB


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    """Between free blocks of 12 and 30 MiB, 11 MiB take the first, so that 30 MiB fit in the second."""
    steps = [("a", 30 * MIB), ("b", 12 * MIB), ("a", 0), ("b", 0), ("c", 11 * MIB), ("d", 30 * MIB)]
    assert script(*steps).peak_reserved == 42 * MIB


def test_a_large_block_is_split_only_where_more_than_1_mib_remains() -> None:
    """A block of 12 MiB is given whole for 11; for 10.5, 1.5 MiB remain, which are given whole for 1.25."""
    whole = script(("a", 12 * MIB), ("a", 0), ("b", 11 * MIB))
    assert (whole.allocated, whole.reserved) == (12 * MIB, 12 * MIB)
    split = script(("a", 12 * MIB), ("a", 0), ("b", 10 * MIB + 512 * KIB), ("c", 1280 * KIB))
    assert (split.allocated, split.reserved) == (12 * MIB, 12 * MIB)
    assert script(("a", 12 * MIB), ("a", 0), ("b", 10 * MIB + 512 * KIB)).allocated == 10 * MIB + 512 * KIB


def test_a_small_block_is_split_where_512_bytes_remain() -> None:
    found = script(("a", MIB), ("b", MIB - 512), ("c", 1))
    assert (found.allocated, found.reserved) == (2 * MIB, 2 * MIB)


def test_a_freed_block_merges_with_both_neighbours() -> None:
    """Three of 6 MiB in one segment of 20: freed, all of it is one block again."""
    three = [("a", 6 * MIB), ("b", 6 * MIB), ("c", 6 * MIB)]
    assert script(*three, ("a", 0), ("c", 0), ("b", 0), ("d", 19 * MIB)).peak_reserved == 20 * MIB
    assert script(*three, ("a", 0), ("c", 0), ("d", 9 * MIB)).peak_reserved == 40 * MIB  # b lies between


def test_segments_never_merge_with_each_other() -> None:
    assert (
        script(("a", 12 * MIB), ("b", 12 * MIB), ("a", 0), ("b", 0), ("c", 24 * MIB)).peak_reserved
        == 48 * MIB
    )


def test_what_is_freed_stays_reserved() -> None:
    found = script(("a", 50 * MIB), ("a", 0))
    assert (found.allocated, found.reserved, found.requested) == (0, 50 * MIB, 0)


def test_an_expandable_segment_grows_by_pages_behind_what_is_free_at_its_end() -> None:
    steps = [("a", 12 * MIB), ("b", 12 * MIB), ("a", 0), ("b", 0), ("c", 24 * MIB)]
    assert script(*steps, expandable=True).peak_reserved == 40 * MIB  # two pages, and the same two again
    assert script(("a", 15 * MIB), ("b", 30 * MIB), expandable=True).peak_reserved == 60 * MIB
    assert script(("a", MIB), ("b", 600 * KIB), ("c", 600 * KIB), expandable=True).peak_reserved == 4 * MIB


def test_an_expandable_segment_splits_blocks_to_the_last_512_bytes() -> None:
    assert script(("a", 20 * MIB - 512), expandable=True).allocated == 20 * MIB - 512


def test_in_an_expandable_segment_a_gap_is_filled_before_the_end_that_can_grow() -> None:
    """Of 40 MiB the first 12 and the last 10 are free: 8 go to the gap, though the end is nearer in size, and 11 need a page more."""
    steps = [("a", 12 * MIB), ("b", 18 * MIB), ("a", 0), ("c", 8 * MIB), ("d", 11 * MIB)]
    assert script(*steps, expandable=True).reserved == 60 * MIB


def test_a_trace_is_replayed_for_one_device() -> None:
    storages = [Storage(3 * MIB, "cuda:0", 0), Storage(50 * MIB, "cpu", 1), Storage(0, "cuda:0", 2)]
    trace = Trace(storages=storages, events=[1, 2, 3, -1, -3])
    found = reserved_bytes(trace, "cuda:0")
    assert (found.peak_requested, found.peak_reserved, found.allocated) == (3 * MIB, 20 * MIB, 0)


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[int, int]]:
    changes: list[tuple[int, int]] = []
    alive: dict[int, int] = {}
    for number in range(draw(st.integers(1, 60))):
        if alive and draw(st.booleans()):
            freed = draw(st.sampled_from(sorted(alive)))
            changes.append((freed, -alive.pop(freed)))
        size = draw(st.one_of(st.integers(1, 3 * MIB), st.integers(1, 64 * MIB)))
        alive[number] = size
        changes.append((number, size))
    return changes


@given(streams(), st.booleans())
def test_whatever_comes_reserved_holds_what_is_allocated_and_frees_give_all_of_it_back(
    changes: list[tuple[int, int]], expandable: bool
) -> None:
    found = replay(changes, expandable_segments=expandable)
    assert found.peak_requested <= found.peak_allocated <= found.peak_reserved
    assert found.requested <= found.allocated <= found.reserved == found.peak_reserved
    assert replay(changes, expandable_segments=expandable) == found
    freed = {number for number, size in changes if size < 0}
    rest = [(number, -size) for number, size in changes if size > 0 and number not in freed]
    ended = replay([*changes, *rest], expandable_segments=expandable)
    assert (ended.requested, ended.allocated) == (0, 0)
    assert ended.reserved == found.reserved


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, (False, ())),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, (True, ())),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, (True, ())),
        ({"PYTORCH_ALLOC_CONF": "", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, (False, ())),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, (False, ())),
        (
            {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:4], expandable_segments:True"},
            (True, ("roundup_power2_divisions",)),
        ),
        ({"PYTORCH_ALLOC_CONF": "pinned_use_background_threads:True"}, (False, ())),
        ({"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, (False, ("backend",))),
    ],
)
def test_settings_are_read_as_torch_reads_them(
    environment: dict[str, str], settings: tuple[bool, tuple[str, ...]]
) -> None:
    assert AllocatorSettings.of(environment) == settings


def test_a_plan_reserves_by_the_machines_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def replayed(changes: Any, *, expandable_segments: bool) -> Reserved:
        asked.append(expandable_segments)
        return replay(changes)

    monkeypatch.setattr(plan_needs, "replay", replayed)
    window = Batch.of((torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)))
    techniques = (find("adamw")(),)
    subject = Subject(lambda: torch.nn.Linear(1, 2), window, Job.of(global_batch=2, updates=1), 2, techniques)
    cpu = find_device("cpu")
    for setting in (False, True):
        planner = plan_needs.Planner(subject, Machine(cpu, cpu, expandable_segments=setting))
        planner.run(Plan(device="cpu"), techniques, None, None)
    assert asked == [False, True]


def test_what_is_gone_before_weights_that_come_in_their_format_are_there_takes_nothing() -> None:
    """Two weights are cast on their way where they do not come so, of which the second finds the room of the first one's source."""
    setup, forward = (Place(0, phase, 0, 0, "", -1) for phase in (Phase.SETUP, Phase.FORWARD))
    ops = [
        Op("to", setup, "cuda:0", torch.float32, 0, 0, 0, 1, workspace=400 * MIB),
        Op("to", setup, "cuda:0", torch.float32, 0, 0, 0, 4),
        Op("mm", forward, "cuda:0", torch.float32, 0, 0, 0, 6),
    ]
    storages = [Storage(size * MIB, "cuda:0", 0) for size in (200, 100, 200, 100, 60)]
    trace = Trace(ops, storages, [1, 2, -1, 3, 4, -3, 5])
    cast, there = (reserved_bytes(trace, "cuda:0", arriving=arriving) for arriving in (True, False))
    assert (cast.peak_requested, there.peak_requested, there.peak_reserved) == (
        700 * MIB,
        260 * MIB,
        260 * MIB,
    )


def test_what_a_kernel_takes_within_stands_beside_its_results_and_what_is_freed_after_it() -> None:
    mib = 2**20
    place = Place(0, Phase.BACKWARD, 0, 0, "", -1)
    ops = [
        Op("a", place, "cuda:0", torch.float32, 0, 0, 0, 0),
        Op("sum", place, "cuda:0", torch.float32, 0, 0, 0, 1, workspace=30 * mib),
        Op("b", place, "cuda:0", torch.float32, 0, 0, 0, 3),
    ]
    storages = [Storage(size * mib, "cuda:0", number) for number, size in enumerate((40, 50, 30))]
    memory = reserved_bytes(Trace(ops, storages, [1, 2, -1, 3]), "cuda:0")
    assert memory.peak_requested == 120 * mib and memory.peak_reserved == 120 * mib
    assert memory.requested == 80 * mib


@pytest.mark.parametrize(
    ("workspaces", "sizes", "events"),
    [
        ((100, 2, 0), (10, 10, 10), [1, 2, 3, -1]),  # another kernel takes some before anything is freed
        ((100, 0, 0), (10, 70, 10), [1, 2, -2, 3]),  # the next operator takes more before anything is freed
        ((0, 0, 100), (5, 3, 2), [1, 2, 3]),  # nothing is freed after it
    ],
)
def test_what_a_kernel_takes_within_is_there_for_as_long_as_its_operator(
    workspaces: tuple[int, ...], sizes: tuple[int, ...], events: list[int]
) -> None:
    mib, place = 2**20, Place(0, Phase.BACKWARD, 0, 0, "", -1)
    begins = [next(at for at, event in enumerate(events) if event == number + 1) for number in range(3)]
    ops = [
        Op("sum", place, "cuda:0", torch.float32, 0, 0, 0, begin, workspace=taken * mib)
        for begin, taken in zip(begins, workspaces, strict=True)
    ]
    storages = [Storage(size * mib, "cuda:0", number) for number, size in enumerate(sizes)]
    assert reserved_bytes(Trace(ops, storages, events), "cuda:0").peak_requested == 110 * mib
