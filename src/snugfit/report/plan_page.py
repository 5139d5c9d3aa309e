"""A plan as one self-contained page: no scripts, no network."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from snugfit.planner.answers import plan_figures
from snugfit.planner.answers.answer import Answer, Rejected
from snugfit.report.frontier_chart import drawn_frontier
from snugfit.report.html import facts, figures, model_name
from snugfit.report.page import document, replace_page
from snugfit.report.stack import BUDGET_IN_VIEW, STACK_STYLE, TONES, stacked
from snugfit.report.svg import escape
from snugfit.units import format_bytes

PLAN_STYLE = (
    STACK_STYLE
    + """
.sentences p{margin-top:6px}.sentences+.sentences{margin-top:24px}
.columns .sentences h3{margin-bottom:0}
.kinds th,.kinds td.bar+td{white-space:nowrap}
.plans thead th{vertical-align:bottom}.plans tbody th{color:inherit}.plans small{display:block}
.bars .bar{position:relative}
.bars small{display:block}
.bars tr.all th,.bars tr.all td{font-weight:560;color:inherit}
.bars .bar .over{background:var(--bad)}.bars .bar .chosen{background:var(--good)}
.bars .bar i{position:absolute;top:0;bottom:0;border-left:1.5px solid var(--bad)}
.ladder th{max-width:none;width:44%}.ladder .bar{width:36%}
@media (max-width:600px){.plans .peak{display:none}}
.shell{white-space:pre-wrap;margin-top:24px}
"""
)


def write_plan_page(answer: Answer, path: Path) -> Path:
    """Write the plan's page to `path`, replacing an older one at once, and return it.

    Raises:
        RunFolderError: it cannot be written.
    """
    return replace_page(Path(path), render_plan(answer))


def render_plan(answer: Answer) -> str:
    """Return the page as text."""
    verdict = "fits" if answer.fits else "does not fit"
    body = (
        _header(answer),
        _smallest(answer),
        _over_time(answer),
        _memory(answer),
        _choice(answer),
        _frontier(answer),
        _runners_up(answer),
        _rejected(answer),
        _provenance(answer),
        f"<footer>Made by Snugfit in {escape(plan_figures.brief_seconds(answer.planned_seconds))}. What is not said to be measured is "
        "predicted.</footer>",
    )
    return document(f"{_name(answer)} · {verdict} · Snugfit", body, PLAN_STYLE)


def _name(answer: Answer) -> str:
    return model_name(str(answer.about.get("model") or "Plan"))


def _header(answer: Answer) -> str:
    status = "finished" if answer.fits else "failed"
    about = [str(answer.about["recipe"])] if answer.about.get("recipe") else []
    about.append(plan_figures.device_words(answer))
    rest = plan_figures.about_words(
        {name: answer.about[name] for name in answer.about if name not in ("model", "recipe")}
    )
    return (
        f"<header><p class=about>{escape(' · '.join(about))}</p><h1>{escape(_name(answer))}</h1>"
        f'<p class=identity><span class="status {status}">{"Fits" if answer.fits else "Does not fit"}</span>'
        f"<span>{escape(' · '.join(rest))}</span></p>"
        f"<p>{escape(plan_figures.headline(answer))}.</p>{_key_figures(answer)}</header>"
    )


def _key_figures(answer: Answer) -> str:
    prediction = answer.prediction
    budget = f"of {plan_figures.brief_bytes(answer.budget_bytes)}, {plan_figures.share(prediction.reserved_bytes / answer.budget_bytes)}"
    rows = [
        ("Memory in all", plan_figures.brief_bytes(prediction.reserved_bytes), budget),
        (
            "Peak of the step",
            plan_figures.brief_bytes(prediction.peak_bytes),
            plan_figures.basis(prediction, "memory"),
        ),
        ("Host memory", plan_figures.brief_bytes(prediction.host_peak_bytes), ""),
        (
            "An update",
            plan_figures.brief_seconds(prediction.seconds_per_update),
            plan_figures.basis(prediction, "time"),
        ),
    ]
    if prediction.seconds_total is not None:
        rows.append(("The run", plan_figures.brief_seconds(prediction.seconds_total), ""))
    if prediction.tokens_per_second is not None:
        rows.append(("Throughput", plan_figures.digits(prediction.tokens_per_second), "tokens/s"))
    else:
        rows.append(("Throughput", plan_figures.digits(prediction.examples_per_second), "examples/s"))
    flops = f"{plan_figures.brief_number(prediction.flops_per_update, 'FLOP')} an update"
    rows.append(("Of peak FLOP/s", plan_figures.share(prediction.share_of_peak), flops))
    return figures(rows)


def _smallest(answer: Answer) -> str:
    rows = [(name, format_bytes(size)) for name, size in answer.would_fit.items()]
    return _section("The smallest budget that would do", facts(rows))


def _over_time(answer: Answer) -> str:
    timeline = answer.prediction.timeline
    return (
        ""
        if timeline is None
        else _section("Over the step", f"<div class=charts>{stacked(answer, timeline)}</div>")
    )


def _memory(answer: Answer) -> str:
    """Return each kind of bytes at the peak with its bar, and where the peak is."""
    prediction = answer.prediction
    rows = plan_figures.memory_rows(answer)
    largest, need = max((size for _, size in rows), default=1), max(1, prediction.reserved_bytes)
    body = "".join(
        f"<tr><th scope=row>{escape(kind)}</th>"
        f'<td class=bar><span class=fill{TONES.get(kind, 8)} style="width:{size / largest:.1%}"></span></td>'
        f"<td class=number>{format_bytes(size)}</td><td class=number>{escape(plan_figures.share(size / need))}</td></tr>"
        for kind, size in rows
    )
    total = (
        f"<tr class=all><th scope=row>in all</th><td></td><td class=number>{format_bytes(prediction.reserved_bytes)}</td>"
        "<td></td></tr>"
    )
    place = [
        ("bytes", format_bytes(prediction.peak_bytes)),
        *(
            (key, plan_figures.printable(prediction.peak_at[key]) or "the model itself")
            for key in prediction.peak_at
        ),
    ]
    return _section(
        f"At the peak ({plan_figures.basis(prediction, 'memory')})",
        f'<div class=columns><div><table class="bars kinds"><tbody>{body}{total}</tbody></table></div>'
        f"<div><h3>Where the peak is</h3>{facts(place)}</div></div>",
    )


def _choice(answer: Answer) -> str:
    choice, model = answer.choice, str(answer.about.get("model") or "")
    rows = [
        *([] if model in ("", _name(answer)) else [("model", model)]),
        ("micro-batch", f"{choice.micro_batch:,}"),
        ("numerics", choice.numerics),
        ("techniques", ", ".join(map(plan_figures.technique_words, choice.techniques)) or "none"),
        ("added by the planner", ", ".join(choice.added) or "none"),
        ("fidelity", choice.fidelity),
        ("devices", f"{choice.devices} ({choice.strategy})"),
    ]
    why = _list("Why", answer.why) + _list("One device or more", answer.rules)
    command = f"<pre class=shell tabindex=0>{escape(answer.command)}</pre>" if answer.command else ""
    title = "The choice" if answer.fits else "The smallest plan"
    return _section(title, f"<div class=columns><div>{facts(rows)}</div><div>{why}</div></div>{command}")


def _list(title: str, sentences: Iterable[str]) -> str:
    body = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f"<div class=sentences><h3>{title}</h3>{body}</div>" if body else ""


def _frontier(answer: Answer) -> str:
    """Return the fastest and the smallest plan of each level of fidelity, drawn and as a table."""
    rows = "".join(
        f"<tr><th scope=row>{one.level}, {one.what}<small>{escape(one.rung)}{'' if one.fits else ' (does not fit)'}</small></th>"
        f"<td class=number>{format_bytes(one.reserved_bytes)}</td><td class='number peak'>{format_bytes(one.host_bytes)}</td>"
        f"<td class=number>{plan_figures.brief_seconds(one.seconds_per_update)}</td>"
        f"<td class=number>{plan_figures.speed_of(answer, one)}</td></tr>"
        for one in answer.frontier
    )
    rows += "".join(
        f"<tr><th scope=row>{one.level}, at best<small>estimate, not searched</small></th><td></td><td class=peak></td>"
        f"<td class=number>≥ {plan_figures.brief_seconds(one.seconds_per_update)}</td>"
        f"<td class=number>≤ {plan_figures.speed_of(answer, one)}</td></tr>"
        for one in answer.bounds
    )
    head = (
        "<th>level</th><th class=number>in all</th><th class='number peak'>host</th><th class=number>an update</th>"
        f"<th class=number>{plan_figures.speed_unit(answer)}</th>"
    )
    note = f"<p class=note>{escape(plan_figures.NOT_SEARCHED)}</p>" if answer.bounds else ""
    body = f"<table class=plans><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"
    return _section("Of each level of fidelity", drawn_frontier(answer) + body) if rows else ""


def _runners_up(answer: Answer) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(one.rung)}<small>{escape(', '.join(plan_figures.choice_words(one.choice)))}</small></th>"
        f"<td class='number peak'>{format_bytes(one.peak_bytes)}</td><td class=number>{format_bytes(one.reserved_bytes)}</td>"
        f"<td class=number>{plan_figures.brief_seconds(one.seconds_per_update)}</td></tr>"
        for one in answer.alternatives
    )
    head = "<th>plan</th><th class='number peak'>peak</th><th class=number>in all</th><th class=number>an update</th>"
    body = f"<table class=plans><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return _section("Runners-up", body) if rows else ""


def _rejected(answer: Answer) -> str:
    """Return each rung that was tried as a bar against the budget, under the plan itself."""
    sizes = [one.bytes for one in answer.rejected if one.bytes is not None]
    longest = max([answer.prediction.reserved_bytes, *sizes])
    if answer.budget_bytes <= BUDGET_IN_VIEW * longest:
        longest = max(longest, answer.budget_bytes)
    choice = Rejected(
        "the choice" if answer.fits else "the smallest plan",
        "",
        answer.prediction.reserved_bytes,
        answer.prediction.seconds_per_update,
    )
    rows = _rung(choice, answer.budget_bytes, longest, "chosen")
    rows += "".join(_rung(one, answer.budget_bytes, longest, "fill8") for one in answer.rejected)
    note = (
        f"<p class=note>The line is the budget, {escape(plan_figures.brief_bytes(answer.budget_bytes))}.</p>"
    )
    body = f'<table class="bars ladder"><tbody>{rows}</tbody></table>{note if answer.budget_bytes <= longest else ""}'
    return _section("What was rejected", body) if answer.rejected else ""


def _rung(one: Rejected, budget: int, longest: int, style: str) -> str:
    bar, size = "", ""
    if one.bytes is not None:
        style = "over" if one.bytes > budget else style
        bar, size = (
            f'<span class={style} style="width:{one.bytes / longest:.1%}"></span>',
            format_bytes(one.bytes),
        )
    edge = f'<i style="left:{budget / longest:.1%}"></i>' if budget <= longest else ""
    time = "" if one.seconds_per_update is None else plan_figures.brief_seconds(one.seconds_per_update)
    return (
        f"<tr><th scope=row>{escape(one.rung)}<small>{escape(one.reason)}</small></th>"
        f"<td class=bar>{bar}{edge}</td><td class=number>{size}</td><td class=number>{time}</td></tr>"
    )


def _provenance(answer: Answer) -> str:
    calibrated = answer.device.get("calibrated")
    rows = [
        *answer.prediction.confidence.items(),
        ("device", "calibrated by measuring it" if calibrated else "from its maker’s sheet, not measured"),
    ]
    return _section("How each figure was found", facts(rows))


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""
