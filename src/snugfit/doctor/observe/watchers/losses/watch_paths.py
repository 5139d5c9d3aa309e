"""Watch what the loss over all paths of letters through frames, CTC, is given: numbers of letters, and lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.losses.watch_losses import kind_of_scores, simple_loss

MANY, LEAST_SEEN = 0.1, 3
"""Share of the texts of a batch that may have no path before it is said, where these count as nothing; and in how many batches."""


def watch_paths(recorder: Recorder, patches: Patches) -> None:
    """Record what the loss of paths gets, in the first updates."""

    def of_paths(original: Any) -> Any:
        def ctc_loss(log_probs: Any, targets: Any, *args: Any, **kwargs: Any) -> Any:
            looked = (
                recorder.detailed
                and isinstance(log_probs, Tensor)
                and not torch.compiler.is_dynamo_compiling()
            )
            if looked and recorder.active:
                with recorder.guard():
                    names = ("input_lengths", "target_lengths", "blank", "reduction", "zero_infinity")
                    options = {**dict(zip(names, args, strict=False)), **kwargs}
                    if log_probs.dim() == 3 and kind_of_scores(log_probs, 2) != "log probabilities":
                        recorder.add(replace(simple_loss(recorder, "ctc_loss", "", True), given="raw scores"))
                    texts = _texts(targets, options.get("target_lengths"))
                    _look_at_blanks(recorder, texts, options.get("blank", 0))
                    _look_at_frames(recorder, texts, options)
            return original(log_probs, targets, *args, **kwargs)

        return ctc_loss

    patches.wrap(torch.nn.functional, "ctc_loss", of_paths)


def _texts(targets: Any, lengths: Any) -> list[Tensor]:
    """Return the letters of each text of a batch, given in rows or one behind the other; none where they are not known."""
    if not isinstance(targets, Tensor) or lengths is None:
        return []
    letters, counts = targets.detach().cpu(), torch.as_tensor(lengths).reshape(-1).tolist()
    if letters.dim() == 2:
        return [row[:count] for row, count in zip(letters, counts, strict=True)]
    return list(letters.split(counts)) if sum(counts) == len(letters) else [letters]


def _look_at_blanks(recorder: Recorder, texts: list[Tensor], blank: int) -> None:
    """Note texts that contain the number of the blank, which no path writes; what pads them does not count."""
    blanks = sum(int((text == blank).sum()) for text in texts)
    if blanks:
        count = sum(map(len, texts))
        what = f"{blanks} of the {count} labels that ctc_loss gets are {blank}, which is the number of its blank: no path writes them."
        fix = "labels = labels + 1   # 0 is the blank; or blank=classes - 1"
        recorder.add(Fault(where(), recorder.log.updates, "unknown_label", what, fix, 2, certain=True))


def _look_at_frames(recorder: Recorder, texts: list[Tensor], options: dict[str, Any]) -> None:
    """Note texts with more letters than frames: each letter takes one, and one more stands between two that are alike."""
    lengths = options.get("input_lengths")
    frames = [] if lengths is None else torch.as_tensor(lengths).reshape(-1).tolist()
    if len(frames) != len(texts):
        return
    needed = [len(text) + int((text[1:] == text[:-1]).sum()) for text in texts]
    short = sum(need > given for need, given in zip(needed, frames, strict=True))
    left_out = bool(options.get("zero_infinity", False))
    if not short or (left_out and short < MANY * len(texts)):
        return
    what = (
        f"{short} of {len(texts)} texts have more letters than ctc_loss has frames for them: no path writes them, and "
        + ("nothing is learned of them." if left_out else "the loss is infinite.")
    )
    fix = "nn.Conv1d(..., stride=1)   # more frames: a text needs as many as it has letters, and one more between two that are alike"
    least = LEAST_SEEN if left_out else 1
    recorder.add(
        Fault(where(), recorder.log.updates, "unreachable_targets", what, fix, least, certain=not left_out)
    )
