"""Memory that is freed goes back to the system, unless the user wants it otherwise. Each case in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.run.plans.planning import is_tight
from snugfit.run.run import execute
from snugfit.system import malloc
from snugfit.system.malloc import tune_malloc

glibc = pytest.mark.skipif(not malloc._is_glibc(), reason="another C library than glibc")

LEFT_OF_256_MIB = """
import sys, torch
from pathlib import Path
from snugfit.system.malloc import tune_malloc

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

if sys.argv[1] == "tuned":
    assert tune_malloc() and tune_malloc()
large = torch.ones(30 << 18)
del large  # after this one, glibc would keep whatever is smaller
before = resident()
many = [torch.ones(1 << 20) for _ in range(64)]
last = torch.ones(1 << 20)  # above all others, where the heap would end
during = resident()
del many
print(during - before, resident() - before)
"""


LEFT_OF_SMALL_BLOCKS = """
from pathlib import Path
from snugfit.system.malloc import trim_malloc

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

before = resident()
blocks = [bytes(8000) for _ in range(8000)]  # too large for Python's own pages, too small for pages of their own
last, blocks = blocks[-1], blocks[:-1]  # above all others, where the heap would end
blocks.clear()
untrimmed = resident() - before
trim_malloc()
print(untrimmed, resident() - before)
"""


def run(*arguments: str, **environment: str) -> str:
    """What a fresh interpreter prints, without this one's settings of malloc."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    command = [sys.executable, "-c", *arguments]
    done = subprocess.run(
        command, env={**inherited, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@glibc
@pytest.mark.slow
def test_tensors_that_are_freed_leave_the_process_only_where_malloc_is_tuned() -> None:
    taken, left = map(float, run(LEFT_OF_256_MIB, "tuned").split())
    assert taken > 240
    assert left < 0.1 * taken  # 4 of 260 MiB are still in use
    taken, left = map(float, run(LEFT_OF_256_MIB, "as it is").split())
    assert left > 0.5 * taken  # else the setting would be needed no more


@glibc
def test_small_blocks_that_are_freed_leave_the_process_when_it_is_trimmed() -> None:
    untrimmed, trimmed = map(float, run(LEFT_OF_SMALL_BLOCKS).split())
    assert untrimmed > 40  # else there would be no need of it
    assert trimmed < 10


@glibc
@pytest.mark.parametrize(
    ("environment", "tuned"),
    [
        ({}, True),
        ({"MALLOC_ARENA_MAX": "1"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}, True),
        ({"MALLOC_MMAP_THRESHOLD_": "1000000"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "1000000"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=1000000"}, False),
    ],
)
def test_what_the_user_says_of_giving_memory_back_is_left_alone(
    environment: dict[str, str], tuned: bool
) -> None:
    assert run("from snugfit.system.malloc import tune_malloc; print(tune_malloc())", **environment) == str(
        tuned
    )


@glibc
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to make an allocator with")
def test_an_allocator_that_was_preloaded_is_left_alone(tmp_path: Path) -> None:
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(
        "#include <stddef.h>\nextern void *__libc_malloc(size_t);\nvoid *malloc(size_t n) { return __libc_malloc(n); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    program = "from snugfit.system.malloc import tune_malloc; print(tune_malloc())"
    assert run(program, LD_PRELOAD=str(library)) == "False"


def test_another_system_has_nothing_to_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert tune_malloc() is False


@glibc
@pytest.mark.parametrize("tight", [True, False])
def test_a_run_on_a_cpu_tunes_malloc_where_memory_is_tight_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tight: bool
) -> None:
    order: list[str] = []
    monkeypatch.setattr("snugfit.run.run.tune_malloc", lambda: order.append("tuned") or True)
    monkeypatch.setattr("snugfit.run.from_python.execute", lambda spec: execute(replace(spec, tight=tight)))

    def loss(outputs: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        order.append("trained")
        return (outputs - batch[1]).square().mean(1)

    rows = TensorDataset(torch.randn(8, 3), torch.randn(8, 2))
    events: list[dict[str, Any]] = []
    sf.train(
        torch.nn.Linear(3, 2),
        rows,
        loss=loss,
        updates=1,
        global_batch=8,
        device="cpu",
        output=tmp_path,
        track=False,
        display=events.append,
    )
    assert order[0] == ("tuned" if tight else "trained") and "trained" in order
    header = next(event for event in events if event["event"] == "run")
    assert header["machine"].get("mmap_threshold_bytes") == (128 * 1024 if tight else None)


def test_a_plan_is_tight_where_what_is_kept_of_freed_memory_would_not_fit() -> None:
    assert is_tight({"reserved_bytes": 76, "budget_bytes": 99}), (
        "of which a run that kept what is freed took 1.31 times"
    )
    assert not is_tight({"reserved_bytes": 66, "budget_bytes": 100})
    assert not is_tight({"micro_batch": 8}), "a run that was not planned"
