"""A page as Chromium draws it: which of its texts are cut off, hard to see, lie over each other or make the page wider
than its window.

Each page is shown in a frame of the width that is asked for, since a window of Chromium has a least width of its own, and with its dark colours too.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_MEASURE = """
const slack = 1.5;  // pixels, which rounding takes
const words = element => element.textContent.trim().replace(/\\s+/g, ' ').slice(0, 60);

const brush = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
const known = {};
function rgba(colour) {  // whatever way it is written in
  if (!(colour in known)) {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    known[colour] = [...brush.getImageData(0, 0, 1, 1).data].map(each => each / 255);
  }
  return known[colour];
}
const blend = (above, below, alpha) => [0, 1, 2].map(each => above[each] * alpha + below[each] * (1 - alpha));
const luminance = colour => [0.2126, 0.7152, 0.0722].reduce((sum, part, each) => {
  const value = colour[each];
  return sum + part * (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
}, 0);
// WCAG 2.2, "contrast ratio"
function contrast(element, view, page) {
  const drawn = element.closest('svg') !== null, own = view.getComputedStyle(element);
  let ground = [1, 1, 1], alpha = 1;
  const behind = [];
  for (let at = element; at; at = at.parentElement) {
    const its = view.getComputedStyle(at);
    behind.push(its.backgroundColor);
    alpha *= +its.opacity;
  }
  for (const colour of behind.reverse()) ground = blend(rgba(colour), ground, rgba(colour)[3]);
  const before = element.previousElementSibling;
  if (drawn && before && before.tagName === 'rect') ground = blend(rgba(view.getComputedStyle(before).fill), ground, 1);
  const ink = rgba(drawn ? own.fill : own.color);
  const pair = [luminance(blend(ink, ground, ink[3] * alpha)), luminance(ground)].sort();
  return (pair[1] + 0.05) / (pair[0] + 0.05);
}

function measure(view, page) {
  const faults = [];
  let count = 0;
  for (const closed of page.querySelectorAll('details')) closed.open = true;
  const width = view.innerWidth;
  if (page.documentElement.scrollWidth > width + slack)
    faults.push(`the page is ${page.documentElement.scrollWidth} wide in a window of ${width}`);
  const scrolls = element => {
    for (let at = element; at && at !== page.body; at = at.parentElement)
      if (['auto', 'scroll'].includes(view.getComputedStyle(at).overflowX)) return true;
    return false;
  };
  const texts = [];
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || ['STYLE', 'SCRIPT', 'TITLE'].includes(element.tagName.toUpperCase())) continue;
    if (element.closest('title')) continue;  // of a drawing: shown under the pointer alone
    const style = view.getComputedStyle(element);
    if (style.visibility === 'hidden' || style.display === 'none' || +style.opacity === 0) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    texts.push({element, box});
    for (const word of node.data.matchAll(/[A-Za-z0-9]+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      // a name of a setting or a file is broken behind its dots and underscores
      if (word[0].length < 16 && new Set([...range.getClientRects()].map(each => Math.round(each.top))).size > 1)
        faults.push(`broken within a word: ${word[0]}`);
    }
    if ((box.left < -slack || box.right > width + slack) && !scrolls(element))
      faults.push(`outside of the window: ${words(element)}`);
    for (let at = element; at && at !== page.body; at = at.parentElement) {
      const its = view.getComputedStyle(at), edge = at.getBoundingClientRect();
      const cuts = ['hidden', 'clip'].includes(its.overflowX);
      if (cuts && (box.left < edge.left - slack || box.right > edge.right + slack)) {
        faults.push(`cut off: ${words(element)}`);
        break;
      }
      if (['auto', 'scroll'].includes(its.overflowX)) break;
    }
    const large = parseFloat(style.fontSize) >= (+style.fontWeight >= 600 ? 18.6 : 24);
    const ratio = contrast(element, view, page);
    if (ratio < (large ? 3 : 4.5)) faults.push(`hard to see, ${ratio.toFixed(1)} to 1: ${words(element)}`);
  }
  for (let one = 0; one < texts.length; one++)
    for (let other = one + 1; other < texts.length; other++) {
      const a = texts[one], b = texts[other];
      if (a.element.contains(b.element) || b.element.contains(a.element)) continue;
      const over = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const deep = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      // lines of texts are higher than their letters
      if (over > slack && deep > 0.35 * Math.min(a.box.height, b.box.height))
        faults.push(`one over the other: ${words(a.element)} | ${words(b.element)}`);
    }
  count = texts.length;
  for (const inner of page.querySelectorAll('iframe')) {  // a page in a notebook
    const found = measure(inner.contentWindow, inner.contentDocument);
    count += found.texts;
    faults.push(...found.faults);
  }
  return {texts: count, faults};
}

async function measured({content, width}) {
  const frame = document.createElement('iframe');
  frame.style.cssText = `border:0;width:${width}px;height:900px`;
  frame.srcdoc = content;
  const loaded = new Promise(done => { frame.onload = done; });
  document.body.append(frame);
  await loaded;
  const found = measure(frame.contentWindow, frame.contentDocument);
  frame.remove();
  return found;
}

(async () => {
  const found = [];
  for (const each of pages) found.push(await measured(each));
  document.getElementById('said').textContent = JSON.stringify(found);
})();
"""

WIDTHS = (1280, 390)
"""Of a desktop and of a phone, in pixels."""

_DARK = "(prefers-color-scheme:dark)"


def measured(
    pages: Sequence[Path], folder: Path, widths: Sequence[int] = WIDTHS
) -> dict[str, tuple[int, list[str]]]:
    """Return how many texts each page shows, and what is wrong with them: by its name, the width of the window, and light or dark.

    One Chromium measures all of them, one after the other.

    Args:
        folder: an empty one, for what Chromium writes.
    """
    assert CHROMIUM is not None
    asked = {}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for scheme, applies in (("light", "not all"), ("dark", "all")):
            for width in widths:
                asked[f"{page.name} {width} {scheme}"] = {
                    "content": text.replace(_DARK, applies),
                    "width": width,
                }
    content = json.dumps(list(asked.values())).replace("</", "<\\/")
    frame = folder / "frame.html"
    frame.write_text(
        f"<!doctype html><meta charset=utf-8><body><pre id=said></pre><script>const pages = {content};{_MEASURE}</script>",
        encoding="utf-8",
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [CHROMIUM, *options, "--virtual-time-budget=60000", "--dump-dom", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    said = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said is not None and said[1], f"nothing was measured: {done.stderr[-500:]}"
    results = json.loads(unescape(said[1]))
    return {name: (found["texts"], found["faults"]) for name, found in zip(asked, results, strict=True)}
