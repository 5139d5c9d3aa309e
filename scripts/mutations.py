"""Break one invariant after another in a copy of the source, and see that a test fails each time.

    python -m scripts.mutations                 all of them
    python -m scripts.mutations sam token       those whose names contain one of these words

A mutation names a file, a passage that occurs in it once, what to write instead, and the tests that have to notice. All
those tests are first run on the unbroken copy, in one session, so that a failure later is the mutation's. Each mutation is
then tried in a fork of this process, which has imported the libraries and nothing of Snugfit: that is most of what a test costs.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAILED = 1
"""Pytest's exit status when a test failed; an error at collection has another."""
NOTICED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
"""Pytest's line of a test that failed."""
LIBRARIES = ("pytest", "hypothesis", "torch", "torch._dynamo", "transformers.modeling_utils")
"""What most tests import."""
CORES = 2


@dataclass(frozen=True)
class Mutation:
    """A line of the package, broken."""

    name: str
    file: str
    passage: str
    broken: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "token weight: every row counts once, however many of its tokens are labelled",
        "core/loss_terms.py",
        "else self._wide_weights().sum()",
        "else float(self.weights.shape[0])",
        ("tests/laws/test_oracle.py::test_without_techniques_it_trains_as_one_token_weighted_full_batch",),
    ),
    Mutation(
        "unscale before clip: gradients keep the loss scale when they are clipped",
        "step/window_gradients.py",
        "self.step.nominal / (_divisor(weight) * factor)",
        "self.step.nominal / _divisor(weight)",
        (
            "tests/laws/test_loss_scale.py::test_accumulation_clipping_and_skipped_updates_are_those_of_grad_scaler",
        ),
    ),
    Mutation(
        "schedule on skipped update: the rate goes by windows, applied or not",
        "step/step.py",
        "set_rates(self.optimizer, self.seams, self.progress.updates)",
        "set_rates(self.optimizer, self.seams, self.progress.windows)",
        ("tests/laws/test_skip.py::test_bad_windows_change_nothing[None-reader-linear]",),
    ),
    Mutation(
        "EMA after skipped update: the average moves although the weights did not",
        "step/step.py",
        "        else:  # non-finite, empty or refused: changes nothing\n",
        "        else:\n            self.seams.updated(self.model, self.progress)\n",
        ("tests/laws/test_skip.py::test_bad_windows_change_nothing[None-reader-ema]",),
    ),
    Mutation(
        "SAM restore: the weights come back by subtraction",
        "techniques/learning/sam.py",
        "            copy_(moved, copies)\n",
        "            for weight, copy in zip(moved, copies, strict=True):\n"
        "                weight.sub_(weight - copy)\n",
        (
            "tests/unit/techniques/test_sam.py::test_weights_are_restored_bit_for_bit_where_subtraction_would_round",
        ),
    ),
    Mutation(
        "sums of the window: a loss of preferences gets those of its micro-batch",
        "step/step.py",
        "return with_window_sums(self, transformed, self._forward) if self._sums_first else transformed",
        "return transformed",
        (
            "tests/unit/step/metrics/test_answer_scores.py::test_a_window_however_split_has_the_loss_and_the_gradient_of_the_paper",
        ),
    ),
    Mutation(
        "reference of preferences: the adapters stay on in it",
        "kit/adapters/adapters.py",
        "        layer._disable_adapters = True\n",
        "        layer._disable_adapters = False\n",
        (
            "tests/unit/step/metrics/test_answer_scores.py::test_a_window_however_split_has_the_loss_and_the_gradient_of_the_paper",
        ),
    ),
    Mutation(
        "mixup label share: the shares of the two labels are exchanged",
        "kit/mixing.py",
        "total = share * _counted(own) + (1 - share) * _counted(other)",
        "total = share * _counted(other) + (1 - share) * _counted(own)",
        ("tests/unit/kit/test_mixing.py",),
    ),
    Mutation(
        "packed rows: a kernel that is told where examples begin is told where rows begin",
        "kit/packing/packed_rows.py",
        "spans += filter(None, parts)",
        "spans += [width]",
        (
            "tests/unit/kit/packing/test_example_attention.py::test_a_stock_model_gives_the_logits_and_gradients_of_padded_rows_without_a_mask",
        ),
    ),
    Mutation(
        "last partial window: the rows that do not fill a window are left out",
        "core/windows.py",
        "-(-self.examples // self.sizes.last)",
        "self.examples // self.sizes.last",
        ("tests/unit/data/test_loader.py",),
    ),
    Mutation(
        "windows that grow: their size is by the window of the epoch, so that it starts anew with each epoch",
        "core/windows.py",
        "size = self.sizes.at(window, epoch)",
        "size = self.sizes.at(window - self._firsts[epoch], epoch)",
        ("tests/unit/core/test_windows.py",),
    ),
    Mutation(
        "windows in tokens: an example more than they may have",
        "core/windows.py",
        "end = bisect_right(sums, most, lo=end)",
        "end = min(bisect_right(sums, most, lo=end) + 1, self.examples)",
        ("tests/laws/test_windows.py::test_a_window_has_as_many_of_the_next_examples_as_its_tokens_allow",),
    ),
    Mutation(
        "no-decay groups: biases and norms are decayed like matrices",
        "core/parameters.py",
        "return parameter.ndim >= 2 and parameter.numel() > max(parameter.shape)",
        "return True",
        ("tests/unit/core/test_parameters.py",),
    ),
    Mutation(
        "best by averaged weights: the raw weights are saved where the average was scored",
        "run/training/best.py",
        '    with phase("save"), seams.weights(step.model):\n',
        "    if True:\n",
        (
            "tests/unit/run/training/test_averaged_runs.py::test_the_best_model_loaded_again_scores_what_was_reported",
        ),
    ),
    Mutation(
        "consent: any recipe runs what it names",
        "recipe/load.py",
        "allowed = allow_code or code_consent.is_here(path)",
        "allowed = True",
        ("tests/unit/cli/test_allow_code.py::test_python_needs_consent_too",),
    ),
    Mutation(
        "consent: the numerics of a bundle run what they name",
        "models/bundle.py",
        '_NAMING = ("numerics", "collate", OWN_LOSS)',
        "_NAMING = ()",
        ("tests/unit/cli/test_allow_code.py::test_a_bundle_runs_no_code_that_it_names_wherever_it_lies",),
    ),
    Mutation(
        "secrets: events hold them",
        "tracking/spool.py",
        'redacted({"event": kind, "time": time.time(), **fields})',
        '{"event": kind, "time": time.time(), **fields}',
        ("tests/unit/system/test_redaction.py::test_no_outlet_of_a_run_shows_a_secret",),
    ),
    Mutation(
        "a save beside the training: what is written is what the training goes on to change",
        "run/checkpoint/host_copy.py",
        "return place.tensor.copy_(tensor, non_blocking=True)",
        "return tensor",
        (
            "tests/unit/run/checkpoint/test_save_and_restore.py::test_a_checkpoint_is_of_its_moment_though_the_training_went_on_before_it_was_written",
        ),
    ),
    Mutation(
        "batch norm of an average: what settling counted stays in the model that is trained",
        "step/step.py",
        "            self.preserved_buffers(),\n            self.averaged(),\n",
        "            self.averaged(),\n",
        (
            "tests/unit/run/training/test_averaged_runs.py::test_evaluating_often_or_never_trains_the_same_weights",
        ),
    ),
    Mutation(
        "batch norm of an average: it is scored with the statistics of the raw weights",
        "techniques/learning/swa.py",
        "            self._norms.estimate(model, passes)\n",
        "            pass\n",
        (
            "tests/unit/techniques/test_swa.py::test_batch_norm_is_scored_with_the_statistics_of_the_average_as_update_bn_finds_them",
        ),
    ),
    Mutation(
        "best beside averaging: an average has to beat the best of the raw weights before it",
        "run/training/best.py",
        "if weights != self.best_weights:",
        "if False:",
        ("tests/unit/run/training/test_best.py",),
    ),
    Mutation(
        "moments of a transposed weight: they keep the layout in memory that a file gives them",
        "kit/optimizers/state_layout.py",
        "    if like is None or state.stride() == like.stride():\n",
        "    if True:\n",
        ("tests/unit/step/test_optimizer.py",),
    ),
    Mutation(
        "recompute: what changes how modules run has ended when blocks are computed again",
        "step/window_gradients.py",
        'with step.strategy.accumulate(step.model, last), step.seams.modules(part):\n                    with step.seams.within(part), phase("loss"):',
        'with step.strategy.accumulate(step.model, last):\n                    with step.seams.forward(part), phase("loss"):',
        ("tests/laws/test_recompute.py::test_blocks_of_ones_own_net_may_be_computed_again",),
    ),
    Mutation(
        "RNG in the second pass: layers draw anew when a window is run again",
        "step/window_gradients.py",
        "        seed_device(seed, step.device)\n",
        "        if step._passes == 1:\n            seed_device(seed, step.device)\n",
        (
            "tests/laws/test_randomness.py::test_every_pass_over_the_same_rows_of_a_window_draws_the_same_dropout[sam]",
        ),
    ),
    Mutation(
        "weight streaming: a block may come to another slot in backward than in forward",
        "kit/streaming/weight_stream.py",
        "                weight.attach(self._slots[place % 2].memory)\n",
        "                weight.attach(self._slots[(place + self._entered) % 2].memory)\n",
        (
            "tests/unit/techniques/test_weight_streaming.py::test_somebodys_own_module_trains_the_same_bit_for_bit",
        ),
    ),
    Mutation(
        "optimizer in backward: a gradient is taken before it is divided",
        "step/window_gradients.py",
        "            _divide(gradients, share)\n            if late:",
        "            if late:",
        ("tests/unit/run/training/test_handing.py::test_each_parameter_comes_once_with_its_true_gradient",),
    ),
    Mutation(
        "out of memory: what the failed pass added up stays in the gradients",
        "step/step.py",
        "        for parameter in self.parameters:\n            parameter.grad = None\n        if",
        "        if",
        (
            "tests/laws/test_out_of_memory.py::test_a_window_that_ran_out_of_memory_makes_the_update_it_would_have_made[plain]",
        ),
    ),
    Mutation(
        "two ranks: the row that a rank without rows computes is counted",
        "step/window_gradients.py",
        "replace(terms, weights=torch.zeros_like(terms.values))",
        "terms",
        ("tests/ranks/test_rank_law.py::test_ranks_with_fewer_rows_and_none_give_the_update_of_one",),
    ),
    Mutation(
        "groups on ranks: they are of the rows of each rank",
        "step/window_gradients.py",
        "whole_window(self.step.strategy, self.batch)",
        "self.batch",
        (
            "tests/ranks/test_rank_groups.py::test_groups_that_do_not_divide_a_rank_s_part_give_the_update_of_one_rank",
        ),
    ),
    Mutation(
        "parts of a loss: those at the worst point are logged too",
        "step/reported_means.py",
        "self._passes != number or not torch.is_grad_enabled()",
        "not torch.is_grad_enabled()",
        ("tests/unit/step/test_reported_means.py",),
    ),
    Mutation(
        "teacher: the map between features is delivered",
        "techniques/learning/distillation.py",
        "    if _PROJECTIONS not in model._modules:",
        "    if True:",
        (
            "tests/unit/techniques/test_distillation.py::test_the_map_is_in_checkpoints_and_not_in_what_is_delivered",
        ),
    ),
    Mutation(
        "hidden squares: what is seen counts too",
        "core/losses.py",
        "return LossTerms(patches.mean(dim=(2, 4)), mask.to(wide))",
        "return LossTerms(patches.mean(dim=(2, 4)))",
        (
            "tests/unit/tasks/test_masked_pictures.py::test_an_update_is_that_of_the_loss_of_transformers_over_the_whole_window",
        ),
    ),
    Mutation(
        "compressed gradients: what is left out of a window is in units of its own",
        "step/window_gradients.py",
        "step.exchange.begin(self._share(alone, totals[1], factor))",
        "step.exchange.begin(1.0)",
        (
            "tests/ranks/test_rank_powersgd.py::test_what_was_sent_and_what_was_left_out_are_the_true_gradients",
        ),
    ),
    Mutation(
        "fsdp: weights that only other ranks' rows reach get no gradient, and shift those of others",
        "strategies/fsdp.py",
        "if missing else terms",
        "if False else terms",
        (
            "tests/ranks/test_rank_reached.py::test_weights_that_some_ranks_reach_are_trained_as_on_one_device",
        ),
    ),
    Mutation(
        "packing: positions go on from one example to the next",
        "kit/packing/packed_rows.py",
        "[place for length in parts for place in range(length)]",
        "list(range(sum(parts)))",
        ("tests/unit/kit/packing/test_packed_rows.py",),
    ),
    Mutation(
        "export: what is read back otherwise than it was scored is delivered",
        "deliver/export/export_model.py",
        "        check(comparisons, str(output))\n",
        "        check([], str(output))\n",
        (
            "tests/unit/deliver/export/test_export_model.py::test_what_is_read_back_otherwise_is_not_delivered",
        ),
    ),
    Mutation(
        "export: rows of queries and keys lie in halves, where llama.cpp takes pairs",
        "deliver/export/gguf_model.py",
        ".transpose(1, 2).reshape(weight.shape)",
        ".reshape(weight.shape)",
        (
            "tests/unit/deliver/export/test_gguf.py::test_llama_cpp_gives_the_logits_answers_tokens_and_texts_that_were_scored",
        ),
    ),
    Mutation(
        "cache of tokens: whoever reads an entry takes its content on trust",
        "data/texts/token_cache.py",
        "or _digest_of_rest(file) != digest",
        "or False",
        ("tests/unit/data/texts/test_token_cache.py::test_a_broken_entry_is_found_and_made_anew",),
    ),
    Mutation(
        "cache of tokens: another tokenizer gets the tokens of the one before",
        "data/texts/token_cache.py",
        '"tokenizer": own,',
        '"tokenizer": "",',
        (
            "tests/unit/data/texts/test_token_cache.py::test_another_tokenizer_is_another_entry_and_its_last_text_is_none",
        ),
    ),
    Mutation(
        "mixture goes on: each epoch begins its sources anew",
        "data/mixture.py",
        "number * len(at) + np.arange(len(at))",
        "np.arange(len(at))",
        (
            "tests/unit/data/test_mixture.py::test_a_source_gives_all_its_rows_before_one_comes_again_whatever_an_epoch_is",
        ),
    ),
    Mutation(
        "mixture share: the first source that may comes next, not the one that has to",
        "data/mixture.py",
        "if best < 0 or deadline < soonest:",
        "if best < 0:",
        (
            "tests/unit/data/test_mixture.py::test_at_every_place_a_source_has_given_its_share_rounded_down_or_up",
        ),
    ),
    Mutation(
        "held-out groups: rows are drawn, and not their groups",
        "data/splits/sides.py",
        "places, aside = split_groups(groups, strata, share, seed)",
        "places, aside = split_rows(strata, share, seed)",
        ("tests/unit/data/splits/test_sides.py::test_no_group_is_on_both_sides",),
    ),
    Mutation(
        "held-out times: the first rows are held out",
        "data/splits/sides.py",
        "sorted(counts, reverse=True)[:-1]",
        "sorted(counts)[:-1]",
        ("tests/unit/data/splits/test_sides.py::test_the_last_days_are_held_out",),
    ),
    Mutation(
        "leaks: one copy of an input stays in training",
        "data/splits/leaks.py",
        "known.setdefault(value, []).append(place)",
        "known[value] = [place]",
        (
            "tests/unit/data/splits/test_leaks.py::test_dropping_leaves_every_copy_out_of_training_and_failing_ends_the_run",
        ),
    ),
    Mutation(
        "folds in time: each trains on what follows it too",
        "tools/cross_validation/result.py",
        "(its < number if forward else its != number)",
        "(its != number)",
        ("tests/unit/tools/cross_validation/test_result.py",),
    ),
    Mutation(
        "balance: values of a source do not take turns",
        "data/mixture.py",
        "np.arange(len(at)) % len(values)",
        "np.arange(len(at)) * len(values) // max(1, len(at))",
        ("tests/unit/data/splits/test_balance.py::test_the_draws_are_those_of_a_plain_loop",),
    ),
    Mutation(
        "balance: it is lost where a part of the examples is taken",
        "data/examples.py",
        "part.balance = replace(self.balance, numbers=numbers)",
        "part.balance = None",
        (
            "tests/unit/data/splits/test_balance.py::test_windows_of_a_loader_are_balanced_and_a_part_taken_before_stays_so",
        ),
    ),
    Mutation(
        "quarantine: rows that are left out are counted alone",
        "data/bad_rows.py",
        "listed.extend(faults)",
        "listed.clear()",
        ("tests/unit/data/test_quarantine.py",),
    ),
    Mutation(
        "views of pictures: a view is picked from itself too",
        "core/losses.py",
        ".masked_fill(own, -math.inf)",
        ".masked_fill(own, 0.0)",
        ("tests/unit/core/test_nt_xent.py",),
    ),
    Mutation(
        "views of pictures: the projection is delivered with the encoder",
        "tasks/task.py",
        "self.delivered(model)",
        "model",
        (
            "tests/unit/tasks/test_contrastive_pretraining.py::test_the_encoder_alone_is_delivered_and_embeds_alike_after_a_reload",
        ),
    ),
    Mutation(
        "sounds: held-out ones are masked as those to train on are",
        "data/sounds/labelled_sounds.py",
        "Sounds(files.validation, sound_format, features=features) if",
        "Sounds(files.validation, sound_format, augment, features=features) if",
        ("tests/unit/data/sounds/test_labelled_sounds.py",),
    ),
    Mutation(
        "sounds: up and down are exchanged where the rate is another one",
        "data/sounds/waveforms.py",
        "rate // divisor, own // divisor",
        "own // divisor, rate // divisor",
        ("tests/unit/data/sounds/test_labelled_sounds.py",),
    ),
)


def run_tests(source: Path, tests: Iterable[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the package under `source`, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def import_libraries() -> None:
    """Import what most tests import, and no module of Snugfit: each fork takes that from a source of its own."""
    import tests.quiet_libraries  # noqa: F401 - before they are imported

    for name in LIBRARIES:
        with contextlib.suppress(ImportError):  # tests that need it skip, or say what is missing
            importlib.import_module(name)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "snugfit"]
    assert not loaded, loaded


def copy_broken(mutation: Mutation, unbroken: Path, source: Path) -> None:
    """Copy the source, and break it."""
    shutil.copytree(unbroken, source, copy_function=os.link)  # compiled files too
    path = source / "snugfit" / mutation.file
    text = path.read_text(encoding="utf-8")
    path.unlink()  # the other copies have the same file
    path.write_text(text.replace(mutation.passage, mutation.broken), encoding="utf-8")


def begin_tests(source: Path, tests: Iterable[str], output: Path) -> int:
    """Run pytest in a fork of this process and return its id; its exit code is pytest's."""
    process = os.fork()
    if process:
        return process
    status = -1
    try:
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ["PYTHONPATH"] = str(source)
        sys.path.insert(0, str(source))
        import pytest

        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
        atexit._run_exitfuncs()  # folders that tests made
    finally:
        os._exit(status)


def try_all(mutations: Iterable[Mutation], unbroken: Path, folder: Path) -> int:
    """Try mutations, as many at a time as there are cores; print of each which test noticed, and return how many none did."""
    waiting = list(mutations)
    running: dict[int, tuple[Mutation, Path]] = {}
    missed = 0
    while waiting or running:
        while waiting and len(running) < CORES:
            mutation, place = waiting.pop(0), Path(tempfile.mkdtemp(dir=folder))
            copy_broken(mutation, unbroken, place / "src")
            running[begin_tests(place / "src", mutation.tests, place / "output")] = mutation, place
        process, code = os.wait()
        mutation, place = running.pop(process)
        output = (place / "output").read_text(encoding="utf-8", errors="replace")
        shutil.rmtree(place)
        status, noticed = os.waitstatus_to_exitcode(code), NOTICED.search(output)
        if status == FAILED and noticed:
            print(f"caught     {mutation.name}\n           {noticed[1]}", flush=True)
        else:
            print(f"NOT CAUGHT {mutation.name}: pytest ended with {status}\n{output[-2000:]}", flush=True)
            missed += 1
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description="Break invariants, and see tests fail.")
    parser.add_argument("words", nargs="*", help="only mutations whose names contain one of these")
    options = parser.parse_args()
    words = options.words or [""]
    mutations = [each for each in MUTATIONS if any(word in each.name for word in words)]
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = Path(
        tempfile.mkdtemp()
    )  # whoever is forked removes nothing at its end, as it would with TemporaryDirectory
    try:
        unbroken = folder / "unbroken"
        shutil.copytree(ROOT / "src", unbroken)
        tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
        done = run_tests(unbroken, tests, "-n", str(CORES), "--dist", "worksteal")
        if done.returncode:
            print(f"The tests already fail on the unbroken copy:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
            return 1
        import_libraries()
        missed = try_all(mutations, unbroken, folder)
    finally:
        shutil.rmtree(folder)
    print(f"{len(mutations)} of {len(MUTATIONS)} mutations tried.")
    return int(bool(missed) or not mutations)


if __name__ == "__main__":
    sys.exit(main())
