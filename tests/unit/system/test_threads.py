"""The one thread that a plan is made with, and those of the run that it is of."""

from __future__ import annotations

import torch

from snugfit.system.threads import one_thread, threads_of_run, threads_of_run_at_work


def test_a_plan_is_made_with_one_thread_and_knows_those_of_the_run_which_a_measurement_has() -> None:
    own = torch.get_num_threads()
    assert threads_of_run() == own
    with one_thread(of_run=3):
        assert (torch.get_num_threads(), threads_of_run()) == (1, 3)
        with threads_of_run_at_work():
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 1
    assert (torch.get_num_threads(), threads_of_run()) == (own, own)
