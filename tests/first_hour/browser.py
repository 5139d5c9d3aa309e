"""A page as Chromium draws it: which of its texts are cut off, lie over each other or make the page wider than its window.

The page is shown in a frame of the width that is asked for, since a window of Chromium has a least width of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_MEASURE = """
const faults = [];
const slack = 1.5;  // pixels, which rounding takes
const words = element => element.textContent.trim().replace(/\\s+/g, ' ').slice(0, 60);
function measure(view, page) {
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
  return {texts: texts.length, faults};
}
"""


def measured(page: Path, width: int, folder: Path) -> tuple[int, list[str]]:
    """Return how many texts a page shows in a window of so many pixels, and what is wrong with them.

    Args:
        folder: an empty one, for what Chromium writes.
    """
    assert CHROMIUM is not None
    frame = folder / f"{page.stem}-{width}.html"
    content = json.dumps(page.read_text(encoding="utf-8")).replace("</", "<\\/")
    frame.write_text(
        f"<!doctype html><body><pre id=said></pre><iframe id=page style='border:0;width:{width}px;height:900px'></iframe>"
        f"<script>{_MEASURE}const frame = document.getElementById('page');"
        "frame.onload = () => { document.getElementById('said').textContent = "
        f"JSON.stringify(measure(frame.contentWindow, frame.contentDocument)); }};frame.srcdoc = {content};</script>",
        encoding="utf-8",
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [CHROMIUM, *options, "--virtual-time-budget=10000", "--dump-dom", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    said = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said is not None and said[1], f"nothing was measured: {done.stderr[-500:]}"
    result = json.loads(unescape(said[1]))
    return result["texts"], result["faults"]
