"""The page's style sheet: system fonts, two calm palettes, one column on a phone and two on a desktop."""

from __future__ import annotations

_COLOURS = """
:root{color-scheme:light dark;
--paper:#fdfcfa;--ink:#20242a;--muted:#5f6670;--rule:#e7e3dc;--base:#b9b4aa;--wash:#f4f1eb;
--tone1:#2f6cb3;--tone2:#c05a1c;--tone3:#2b7f56;--tone4:#8350b0;
--tone5:#8f7210;--tone6:#b23a62;--tone7:#237f8c;--tone8:#6b6f76;
--good:#23704a;--fair:#8f5a00;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{
--paper:#15181c;--ink:#e4e6e9;--muted:#9ba3ad;--rule:#292e35;--base:#565d67;--wash:#1d2126;
--tone1:#78aeee;--tone2:#efa06a;--tone3:#6fc297;--tone4:#bf9be4;
--tone5:#d6bb5e;--tone6:#ec8aa9;--tone7:#6cc3cf;--tone8:#a8adb5;
--good:#7acb9f;--fair:#e6b65c;--bad:#ff8f85}}
"""

_TONES = "".join(
    f".tone{number}{{stroke:var(--tone{number});border-color:var(--tone{number})}}\n"
    f".dot.tone{number}{{fill:var(--tone{number});stroke:var(--paper)}}\n"
    for number in range(1, 9)
)

_TEXT = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font-size:16px;line-height:1.55;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",Arial,sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
main{max-width:1120px;margin:0 auto;padding:56px 32px 72px}
h1,h2,h3,p,dl,dd,figure,ul{margin:0;padding:0}
h1{font-size:40px;line-height:1.15;font-weight:650;letter-spacing:-.02em;text-wrap:balance}
h2{font-size:22px;line-height:1.3;font-weight:620;letter-spacing:-.01em;margin-bottom:20px}
h3{font-size:15px;line-height:1.4;font-weight:620}
section{margin-top:64px}
section.close{margin-top:0}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:.875em}
small,.unit,.note,.legend,caption,.about,footer{color:var(--muted);font-size:14px}
.note{line-height:1.45}
footer{margin-top:64px;padding-top:16px;border-top:1px solid var(--rule)}
"""

_HEADLINE = """
.about{margin-bottom:6px}
.identity{display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 16px;margin-top:12px;color:var(--muted)}
.status{font-weight:620;color:var(--tone1)}
.status::before{content:"";display:inline-block;width:.6em;height:.6em;margin-right:.45em;border-radius:50%;
background:currentColor}
.status.finished{color:var(--good)}.status.stopped{color:var(--fair)}.status.failed{color:var(--bad)}
header>p:not(.about,.identity){margin-top:14px;max-width:72ch}
.reason{white-space:pre-wrap}
.reason.failed{padding-left:14px;border-left:3px solid var(--bad)}
.progress{height:6px;margin-top:8px;max-width:420px;border-radius:3px;background:var(--rule)}
.progress span{display:block;height:100%;border-radius:3px;background:var(--tone1)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(118px,1fr));gap:24px 12px;
margin-top:32px;padding-top:24px;border-top:1px solid var(--rule)}
.figures dt{color:var(--muted);font-size:14px}
.figures dd{font-size:21px;line-height:1.35;font-weight:560;letter-spacing:-.01em}
.figures small{display:block;font-weight:400;letter-spacing:0;line-height:1.4}
"""

# caption, plot and notes of neighbouring figures share their rows, so that the plots stand level
_CHARTS = """
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:0 48px}
figure{display:grid;grid-row:span 3;grid-template-rows:subgrid;min-width:0;
padding-bottom:40px;break-inside:avoid}
figure.wide{grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;align-items:baseline;
align-content:flex-start;gap:2px 10px;margin-bottom:14px}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none}
section>.legend{margin:-8px 0 24px}
figcaption .legend{margin-left:auto}
.key{display:inline-block;width:18px;height:0;margin-right:7px;border-top:2px solid;vertical-align:.28em}
.key.faint{border-top-width:5px;vertical-align:.18em}
.key.mark{width:0;height:13px;border-top:0;border-left:3px solid;vertical-align:-.12em}
.key.mark.resume{border-left-width:2px;border-left-style:dashed}
.plot{display:block;width:calc(100% - 52px);height:190px;margin:0 0 42px 52px;overflow:visible}
.wide .plot{height:300px}
.plot text{fill:var(--muted);font-size:12px}
.plot .y{text-anchor:end}.plot .x{text-anchor:middle}.plot .end{text-anchor:end}
.rule{stroke:var(--rule)}.base{stroke:var(--base)}
.plot path{fill:none;stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}
.curve{stroke-width:1.75px}.faint{stroke-width:1px;opacity:.36}
.dot{stroke-width:1.5px}.ring{fill:none;stroke-width:1.5px}
.mark.skipped{stroke:var(--fair);border-color:var(--fair);stroke-width:2px}
.mark.warning{stroke:var(--bad);border-color:var(--bad);stroke-width:2px}
.mark.resume{stroke:var(--muted);border-color:var(--muted);stroke-width:1.5px;stroke-dasharray:4 4}
"""

_LISTS = """
.incidents{list-style:none}
.incidents li{display:flex;gap:8px;padding:9px 0;border-top:1px solid var(--rule)}
.incidents .key{flex:none;width:4px;margin:5px 4px 0 0}
.incidents small{display:block}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:32px 48px;
align-items:start}
.columns h3{margin-bottom:8px}
.facts{display:grid;grid-template-columns:fit-content(50%) 1fr;font-size:15px}
.facts dt,.facts dd{padding:5px 0;border-top:1px solid var(--rule)}
.facts dt{color:var(--muted);padding-right:20px;min-width:120px}
.facts+.facts{margin-top:24px}
table{width:100%;border-collapse:collapse;font-size:15px;line-height:1.45}
caption{text-align:left;padding-bottom:8px}
th{font-weight:inherit;color:var(--muted);text-align:left}
th,td{padding:6px 20px 6px 0;border-top:1px solid var(--rule);vertical-align:baseline}
thead th{border-top:0;font-size:14px}
th.number,td.number{text-align:right;white-space:nowrap}
.bars th{color:inherit;max-width:14em}
.bars .bar{width:50%}
.bars .bar span{display:block;height:10px;min-width:1px;border-radius:2px;background:var(--tone1)}
.bars td:last-child{padding-right:0;color:var(--muted)}
.scroll{overflow-x:auto}
.scroll table{width:auto;min-width:50%}
.scroll th,.scroll td{white-space:nowrap;padding-right:28px}
.scroll .name{position:sticky;left:0;background:var(--paper);color:var(--ink);white-space:normal;
overflow-wrap:normal;max-width:40vw}
details{border-top:1px solid var(--rule);border-bottom:1px solid var(--rule);padding:10px 0}
summary{cursor:pointer;font-weight:560}
summary:focus-visible,[tabindex]:focus-visible{outline:2px solid var(--tone1);outline-offset:3px}
details>:not(summary){margin-top:12px}
pre{margin:0;padding:16px 18px;background:var(--wash);border-radius:6px;overflow-x:auto;line-height:1.55;
overflow-wrap:normal}
pre.example{white-space:pre-wrap;overflow-wrap:anywhere}
pre mark{background:color-mix(in srgb,var(--tone1) 28%,transparent);color:inherit}
pre b{font-weight:inherit;color:var(--tone1)}
"""

_OTHER_SIZES = """
@media (max-width:600px){main{padding:32px 16px 48px}h1{font-size:30px}section{margin-top:48px}
.figures{grid-template-columns:1fr 1fr}.wide .plot{height:230px}
figcaption .legend{margin-left:0;width:100%}
.bars .bar{width:34%}th,td{padding-right:12px}.scroll th,.scroll td{padding-right:16px}}
@media print{body{font-size:12px}main{padding:0}section{margin-top:32px}}
"""

STYLE = _COLOURS + _TEXT + _HEADLINE + _CHARTS + _TONES + _LISTS + _OTHER_SIZES
