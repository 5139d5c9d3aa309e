"""Put all watchers in place."""

from __future__ import annotations

from collections.abc import Callable

from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import callers
from snugfit.doctor.observe.watchers.attention.watch_attention import watch_attention
from snugfit.doctor.observe.watchers.attention.watch_places import PlaceWatch
from snugfit.doctor.observe.watchers.attention.watch_products import watch_products
from snugfit.doctor.observe.watchers.attention.watch_squashes import watch_squashes
from snugfit.doctor.observe.watchers.dependence.watch_baselines import BaselineWatch
from snugfit.doctor.observe.watchers.dependence.watch_inputs import InputWatch
from snugfit.doctor.observe.watchers.dependence.watch_nearest import watch_nearest
from snugfit.doctor.observe.watchers.dependence.watch_rows import RowWatch
from snugfit.doctor.observe.watchers.dependence.watch_series import SeriesWatch
from snugfit.doctor.observe.watchers.libraries.watch_tables import look_at_rows, watch_tables
from snugfit.doctor.observe.watchers.libraries.watch_transformers import (
    watch_accelerate,
    watch_lightning,
    watch_transformers,
)
from snugfit.doctor.observe.watchers.loaders.watch_loaders import watch_loaders, watch_scales
from snugfit.doctor.observe.watchers.losses.watch_argmax import watch_argmax
from snugfit.doctor.observe.watchers.losses.watch_copies import NoiseDrawn, watch_copies
from snugfit.doctor.observe.watchers.losses.watch_distributions import watch_distributions
from snugfit.doctor.observe.watchers.losses.watch_divergences import DivergenceWatch
from snugfit.doctor.observe.watchers.losses.watch_hand_losses import watch_hand_losses
from snugfit.doctor.observe.watchers.losses.watch_likenesses import LikenessWatch
from snugfit.doctor.observe.watchers.losses.watch_losses import watch_losses, watch_other_losses
from snugfit.doctor.observe.watchers.losses.watch_paths import watch_paths
from snugfit.doctor.observe.watchers.losses.watch_taught import TaughtWatch
from snugfit.doctor.observe.watchers.modules.adapters import AdapterWatch
from snugfit.doctor.observe.watchers.modules.equal_units import EqualWatch
from snugfit.doctor.observe.watchers.modules.linear_models import LinearWatch
from snugfit.doctor.observe.watchers.modules.new_heads import HeadWatch
from snugfit.doctor.observe.watchers.modules.recurrence_axes import RecurrenceWatch
from snugfit.doctor.observe.watchers.modules.watch_dropout import watch_dropout
from snugfit.doctor.observe.watchers.modules.watch_files import watch_files
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.modules.watch_recompute import watch_recompute
from snugfit.doctor.observe.watchers.modules.watch_settings import SettingWatch
from snugfit.doctor.observe.watchers.modules.watch_states import watch_states
from snugfit.doctor.observe.watchers.optimizers.gradient_state import Gradients
from snugfit.doctor.observe.watchers.optimizers.watch_ranks import watch_ranks
from snugfit.doctor.observe.watchers.optimizers.watch_schedules import watch_schedules
from snugfit.doctor.observe.watchers.optimizers.watch_seeds import SeedWatch
from snugfit.doctor.observe.watchers.scores.taken_classes import TakenClasses, watch_rounded
from snugfit.doctor.observe.watchers.scores.truth_orders import OrderWatch
from snugfit.doctor.observe.watchers.scores.watch_draws import watch_draws
from snugfit.doctor.observe.watchers.scores.watch_masks import MaskWatch
from snugfit.doctor.observe.watchers.scores.watch_scores import watch_scores
from snugfit.doctor.observe.watchers.tensors.watch_cuts import watch_cuts
from snugfit.doctor.observe.watchers.tensors.watch_views import watch_views
from snugfit.doctor.observe.watchers.terms.watch_alike import AlikeWatch
from snugfit.doctor.observe.watchers.terms.watch_numbers import watch_numbers
from snugfit.doctor.observe.watchers.terms.watch_signs import SignWatch
from snugfit.doctor.observe.watchers.terms.watch_sums import watch_sums
from snugfit.doctor.observe.watchers.terms.watch_terms import TermWatch
from snugfit.doctor.observe.watchers.terms.watch_weights import WeightWatch
from snugfit.doctor.observe.watchers.texts.watch_texts import watch_texts
from snugfit.doctor.observe.watchers.updates.watch_halves import HalfWatch
from snugfit.doctor.observe.watchers.updates.watch_updates import UpdateWatch
from snugfit.doctor.observe.watchers.updates.watch_windows import WindowWatch


def install(recorder: Recorder, patches: Patches) -> Callable[[], None]:
    """Begin to observe torch's public functions; the result completes the log at the end."""
    gradients = Gradients(recorder)
    modules = ModuleWatch(recorder)
    seeds = SeedWatch(recorder)
    alike = AlikeWatch(recorder)
    terms = TermWatch(recorder, alike)
    noise = NoiseDrawn(recorder)
    updates = UpdateWatch(recorder, gradients, modules, seeds, terms)
    recorder.on_wake = updates.woken
    signs = SignWatch(recorder, hooked=lambda: modules.dependence.hooked)
    signs.install(patches)
    places, likenesses = PlaceWatch(recorder), LikenessWatch(recorder)
    likenesses.install(patches)
    orders = OrderWatch(recorder)
    heads = HeadWatch(recorder)
    heads.install(patches)
    linear = LinearWatch(recorder)
    linear.install(patches)
    modules.companions = [
        RowWatch(
            recorder,
            hooked=lambda: modules.dependence.hooked,
            shuffled=lambda: bool(modules.states.batch),
            rows_drawn=lambda: modules.rows_drawn,
        ),
        signs,
        TaughtWatch(recorder),
        SettingWatch(recorder),
        places,
        InputWatch(recorder, rows_drawn=lambda: modules.rows_drawn),
        likenesses,
        DivergenceWatch(recorder),
        alike,
        heads,
        linear,
        MaskWatch(recorder),
        orders,
        EqualWatch(recorder),
        AdapterWatch(recorder),
        WindowWatch(recorder),
        WeightWatch(recorder),
        HalfWatch(recorder, gradients),
        RecurrenceWatch(recorder, lambda: (modules.rows_in_batch, modules.rows_drawn)),
        SeriesWatch(recorder, hooked=lambda: modules.dependence.hooked),
    ]
    modules.install(patches)
    watch_states(recorder, modules, patches)
    updates.install(patches)
    seeds.install(patches)
    terms.install(patches)
    watch_schedules(recorder, patches)
    watch_losses(recorder, gradients, modules, noise, patches)
    taken = TakenClasses(recorder, orders)
    watch_argmax(recorder, modules.class_axes, taken, patches)
    watch_rounded(taken, recorder, patches)
    watch_nearest(recorder, modules, patches)
    watch_copies(recorder, noise, patches)
    watch_other_losses(recorder, gradients, modules, patches)
    watch_paths(recorder, patches)
    watch_distributions(recorder, patches)
    watch_squashes(recorder, modules, patches)
    watch_attention(recorder, places, patches)
    watch_dropout(recorder, modules, patches)
    watch_recompute(recorder, patches)
    watch_scores(recorder, modules, taken, patches)
    watch_draws(recorder, patches)
    BaselineWatch(recorder).install(patches)
    places.install(patches)
    watch_numbers(recorder, modules, terms, patches)
    watch_products(recorder, patches)
    watch_sums(recorder, patches)
    watch_hand_losses(recorder, patches)
    watch_cuts(recorder, patches)
    watch_loaders(recorder, modules, patches)
    watch_scales(recorder, patches)
    watch_views(recorder, patches)
    watch_ranks(recorder, gradients, patches)
    watch_texts(recorder, modules.loaded, patches)
    watch_transformers(recorder, patches)
    watch_lightning(recorder, patches)
    watch_accelerate(recorder, patches)
    watch_tables(recorder, modules.tables, patches)
    watch_files(recorder, modules, patches)

    def finish() -> None:
        updates.finish()
        modules.finish()
        look_at_rows(recorder, modules.tables, modules.rows)
        recorder.log.callers = {called: list(lines) for called, lines in callers.items()}

    return finish
