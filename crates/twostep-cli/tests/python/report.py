"""Opens reports as people do and looks for what must not be: `report.py BROWSER REPORT... [--photos DIR]`.

Every report is opened wide and narrow, in light and dark. Prints one JSON object: for each report what it weighs and the
problems that were found in it.
"""

import argparse
import json
import os
import pathlib
import sys

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import sync_playwright

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
THEMES = ["light", "dark"]

# Text may stick out of its figure by this: half a pixel of rounding on either side.
SLACK = 1.0

# Clicked and pointed at, and pictured: those of later settings of a sweep are of the same kinds.
MOST_FIGURES = 30

# Tried with the pointer until something is shown: lines have few places that are on them.
MOST_HOVERS = 60

# Height of a picture in pixels: browsers draw no larger ones.
TALLEST = 16_000

# Time that a link has to lead to its target, in milliseconds: pages scroll smoothly, and slowly where they share a processor.
PATIENCE = 5000

LOOK = """
(slack) => {
  const problems = [];
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  const root = document.scrollingElement;
  if (root.scrollWidth > window.innerWidth) {
    const wide = [...document.body.querySelectorAll("*")].filter(e => {
      const box = e.getBoundingClientRect();
      if (box.width === 0 || box.right <= window.innerWidth + 1) return false;
      // What scrolls by itself may be wide inside.
      for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) {
        if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(p).overflowX)) return false;
      }
      return true;
    });
    const names = wide.slice(0, 3).map(e => `${e.tagName.toLowerCase()}.${e.getAttribute("class") || ""}#${e.id}`);
    problems.push(`the page is ${root.scrollWidth} px wide in a window of ${window.innerWidth}: ${names.join(", ")}`);
  }
  for (const e of document.querySelectorAll("h1, h2, h3, p, li, th, td, figcaption, summary, button, .said")) {
    if (e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1) {
      problems.push(`the text "${e.textContent.slice(0, 40)}" sticks out of its ${e.tagName.toLowerCase()}`);
    }
  }
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > slack
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > slack;
  const figures = [...document.querySelectorAll("figure")];
  if (figures.length === 0) problems.push("there is no figure");
  for (const figure of figures) {
    const name = figure.id || "a figure without id";
    const drawings = [...figure.querySelectorAll("svg[viewBox]")].filter(svg => !svg.ownerSVGElement);
    if (drawings.length === 0) problems.push(`${name}: no svg with a viewBox`);
    const mark = ":is(.series, .marks) :is(path, circle, line, rect, polygon, polyline, use, text)";
    if (!figure.querySelector(mark)) problems.push(`${name}: no mark`);
    figure.querySelectorAll("svg.plot").forEach((plot, i) => {
      if (!plot.querySelector(mark)) problems.push(`${name}: panel ${i + 1} is empty`);
    });
    for (const svg of drawings) {
      const frame = svg.getBoundingClientRect();
      if (frame.width === 0) continue;
      for (const text of svg.querySelectorAll("text")) {
        const box = text.getBoundingClientRect();
        if (box.width === 0) continue;
        if (box.left < frame.left - slack || box.right > frame.right + slack
            || box.top < frame.top - slack || box.bottom > frame.bottom + slack) {
          problems.push(`${name}: the text "${text.textContent.slice(0, 40)}" sticks out of the figure`);
        }
      }
      const ticks = [...svg.querySelectorAll("text.tick")].map(t => [t.textContent, t.getBoundingClientRect()])
        .filter(([, box]) => box.width > 0);
      for (let i = 0; i < ticks.length; i++) {
        for (let j = i + 1; j < ticks.length; j++) {
          if (overlap(ticks[i][1], ticks[j][1])) {
            problems.push(`${name}: the tick labels "${ticks[i][0]}" and "${ticks[j][0]}" overlap`);
          }
        }
      }
    }
  }
  if (/\\b(NaN|undefined|Infinity)\\b/.test(document.body.innerText)) problems.push("a NaN, undefined or Infinity is shown");
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach(id => problems.push(`the id ${id} is used twice`));
  const links = [...document.querySelectorAll("#contents a")];
  if (links.length === 0) problems.push("the contents have no links");
  for (const a of links) {
    const target = decodeURIComponent((a.getAttribute("href") || "").replace(/^#/, ""));
    if (!target || !document.getElementById(target)) problems.push(`the contents lead to "${target}", which is nowhere`);
  }
  for (const e of document.querySelectorAll("*")) {
    if (e.tagName === "SCRIPT" && /^\\s*alert\\(/.test(e.textContent)) problems.push("a script was injected");
    for (const attribute of e.attributes) {
      if (attribute.name.startsWith("on")) problems.push(`${e.tagName} has ${attribute.name}`);
    }
  }
  return problems;
}
"""

# Places where a pointer meets a mark: points of lines, middles of everything else.
PLACES = """
(figure) => [...figure.querySelectorAll(":is(.series, .marks) :is(circle, rect, use, path, line, polyline)")].slice(0, 400).map(e => {
  const box = e.getBoundingClientRect();
  if (e.getTotalLength && e.tagName !== "rect" && e.tagName !== "circle") {
    const p = e.getPointAtLength(e.getTotalLength() / 3), m = e.getScreenCTM();
    return [p.x * m.a + p.y * m.c + m.e, p.x * m.b + p.y * m.d + m.f];
  }
  return [box.left + box.width / 2, box.top + box.height / 2];
}).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y))
"""

SHOWN = """
() => {
  const tip = document.getElementById("tip");
  if (!tip) return null;
  const style = getComputedStyle(tip), box = tip.getBoundingClientRect();
  const visible = !tip.hidden && style.display !== "none" && style.visibility !== "hidden" && style.opacity !== "0" && box.width > 0;
  return visible ? { text: tip.textContent, right: box.right, left: box.left } : null;
}
"""

ARRIVED = """
id => {
  const target = document.getElementById(decodeURIComponent(id)), page = document.scrollingElement;
  if (!target || decodeURIComponent(location.hash) !== "#" + decodeURIComponent(id)) return false;
  const top = target.getBoundingClientRect().top;
  const at_end = page.scrollTop + page.clientHeight >= page.scrollHeight - 2;
  return top > -2 && (top < window.innerHeight / 2 || at_end);
}
"""

HIDDEN = """
(figure, name) => [...figure.querySelectorAll(".series")].filter(g => g.dataset.series === name)
  .map(g => { const style = getComputedStyle(g); return style.display === "none" || style.visibility === "hidden"; })
"""


class Visit:
    """One report in one window."""

    def __init__(self, browser, report, size, theme):
        width, height = SIZES[size]
        self.where, self.problems = f"{size}, {theme}", []
        self.page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
        self.url = report.resolve().as_uri()
        self.page.on("request", self.requested)
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.wrong(f"console: {m.text}"))
        self.page.on("pageerror", lambda error: self.wrong(f"page error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong(f"a dialog opened: {dialog.message}"), dialog.dismiss()))
        self.page.goto(self.url, wait_until="load")

    def wrong(self, text):
        self.problems.append(f"{self.where}: {text}")

    def requested(self, request):
        if request.url.split("#")[0] != self.url and not request.url.startswith(("data:", "blob:")):
            self.wrong(f"requested {request.url[:200]}")

    def look(self):
        for problem in self.page.evaluate(LOOK, SLACK):
            self.wrong(problem)

    def toggle(self):
        """Every legend hides what it names, in its own figure alone, and shows it again."""
        for figure in self.page.query_selector_all("figure")[:MOST_FIGURES]:
            name = figure.get_attribute("id")
            for key in figure.query_selector_all("button.key"):
                series = key.get_attribute("data-series")
                states = [key.get_attribute("aria-pressed")]
                hidden = [figure.evaluate(HIDDEN, series)]
                for _ in range(2):
                    key.click()
                    states.append(key.get_attribute("aria-pressed"))
                    hidden.append(figure.evaluate(HIDDEN, series))
                if states != ["true", "false", "true"]:
                    self.wrong(f"{name}: the key of {series} goes through the states {states}")
                if not hidden[0]:
                    self.wrong(f"{name}: the legend names {series}, which has no marks")
                elif any(hidden[0]) or not all(hidden[1]) or any(hidden[2]):
                    self.wrong(f"{name}: the key of {series} does not hide and show its marks")

    def hover(self):
        """Somewhere in every figure a pointer is told a number."""
        for figure in self.page.query_selector_all("figure")[:MOST_FIGURES]:
            figure.scroll_into_view_if_needed()
            places = figure.evaluate(PLACES)
            step = max(1, len(places) // MOST_HOVERS)
            for x, y in places[::step]:
                self.page.mouse.move(x, y)
                shown = self.page.evaluate(SHOWN)
                if shown and any(c.isdigit() for c in shown["text"]):
                    if shown["left"] < -SLACK or shown["right"] > self.page.viewport_size["width"] + SLACK:
                        self.wrong(f"{figure.get_attribute('id')}: the tip \"{shown['text'][:40]}\" leaves the window")
                    break
            else:
                self.wrong(f"{figure.get_attribute('id')}: no mark shows a number to the pointer")
        self.page.mouse.move(0, 0)

    def follow(self):
        """The contents lead where they say; the page may take its time to get there."""
        for link in self.page.query_selector_all("#contents a"):
            target = link.get_attribute("href")
            link.evaluate("a => a.click()")
            try:
                self.page.wait_for_function(ARRIVED, arg=target.removeprefix("#"), timeout=PATIENCE)
            except PlaywrightError:
                self.wrong(f"the contents' link to {target} leads elsewhere")

    def print(self):
        self.page.emulate_media(media="print")
        size = len(self.page.pdf(format="A4", print_background=True))
        if size < 10_000:
            self.wrong(f"printed to only {size} bytes")
        self.page.emulate_media(media="screen")

    def weigh(self):
        return self.page.evaluate(
            "() => { const t = performance.getEntriesByType('navigation')[0]; return { "
            "nodes: document.querySelectorAll('*').length, load_ms: Math.round(t.loadEventEnd), "
            "figures: document.querySelectorAll('figure').length, "
            "scripts: document.scripts.length, title: document.title, text: document.body.innerText.length }; }")

    def photograph(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        name = self.where.replace(", ", "-")
        self.page.evaluate("scrollTo(0, 0)")
        width = self.page.viewport_size["width"]
        height = min(TALLEST, self.page.evaluate("document.documentElement.scrollHeight"))
        clip = {"x": 0, "y": 0, "width": width, "height": height}
        self.page.screenshot(path=folder / f"{name}.png", full_page=True, clip=clip)
        for number, figure in enumerate(self.page.query_selector_all("figure")[:MOST_FIGURES]):
            figure.screenshot(path=folder / f"{name}-{number:02}-{figure.get_attribute('id')}.png")


def examine(browser, report, photos):
    found = {"bytes": os.path.getsize(report), "problems": []}
    for size in SIZES:
        for theme in THEMES:
            visit = Visit(browser, report, size, theme)
            found.update({key: value for key, value in visit.weigh().items() if key not in found})
            visit.look()
            if theme == "light":
                visit.toggle()
                visit.hover()
                visit.follow()
                visit.print()
            if photos:
                visit.photograph(photos / report.resolve().parent.name / report.stem)
            found["problems"] += visit.problems
            visit.page.close()
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("browser")
    parser.add_argument("reports", nargs="+", type=pathlib.Path)
    parser.add_argument("--photos", type=pathlib.Path)
    given = parser.parse_args()
    with sync_playwright() as playwright:
        # Root, as in a container, may not use the sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=given.browser, args=["--no-sandbox"])
        found = {str(report): examine(browser, report, given.photos) for report in given.reports}
        browser.close()
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
