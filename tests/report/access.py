"""What a page owes to whoever has a keyboard, a screen reader, a phone or weak eyes, asked of a browser."""

from __future__ import annotations

from typing import Any

from tests.browser import Browser

WIDTHS = (360, 800, 1280, 1440)

MOST_STEPS = 60
"""Presses of Tab at most."""

LEAST_CONTRAST = 4.5
"""Of text to what is behind it, by the Web Content Accessibility Guidelines 2.1, level AA."""

NAMED = {"button", "link", "heading", "image", "img", "region", "navigation", "table", "checkbox", "searchbox"}
"""Roles that say nothing without a name."""

CONTRASTS = """(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (colour) => colour.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || element.closest("script, style, noscript, .halo_marks, .unseen")) continue;
    if (element.disabled || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), svg = element.closest("svg");
    if (svg && style.fill === "none") continue;
    const [one, two] = [light(channels(svg ? style.fill : style.color)), light(behind(svg ?? element))];
    found[`${element.tagName}.${element.className.baseVal ?? element.className}`] =
      (Math.max(one, two) + .05) / (Math.min(one, two) + .05);
  }
  return found;
})()"""

FOCUS = """(() => {
  const element = document.activeElement, style = getComputedStyle(element);
  const place = element.getBoundingClientRect();
  return {
    body: element === document.body,
    name: element.tagName + " " + (element.ariaLabel ?? element.textContent).slice(0, 40),
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
    seen: place.bottom > 0 && place.top < innerHeight && place.right > 0 && place.left < innerWidth,
    top: place.top + scrollY, left: place.left,
  };
})()"""


def assert_usable(browser: Browser) -> None:
    """Hold the page that is open, at its width, to all of them."""
    width = browser.evaluate("innerWidth")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg, .unseen'))"
    wide += ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    assert (out := browser.evaluate(wide)) == [], out
    # Each row of tiles or cards reaches the right edge of the page's text.
    rows = "[...document.querySelectorAll('.tiles, .shown')].flatMap(grid => [...Object.values(Object.groupBy("
    rows += "[...grid.children], e => Math.round(e.getBoundingClientRect().top)))].map(row => Math.round("
    rows += "grid.getBoundingClientRect().right - Math.max(...row.map(e => e.getBoundingClientRect().right)))))"
    assert set(browser.evaluate(rows)) <= {0}
    _assert_headings(browser)
    _assert_names(browser)
    for scheme in ("light", "dark"):
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        faint = {of: round(c, 1) for of, c in browser.evaluate(CONTRASTS).items() if c < LEAST_CONTRAST}
        assert faint == {}, scheme
    browser.send("Emulation.setEmulatedMedia", features=[])
    assert [text for text in browser.complaints if "favicon" not in text] == []


def assert_reached_by_tab(browser: Browser) -> list[str]:
    """Press Tab to the page's end: each stop is outlined, in sight, and none is above the one before.

    Returns:
        What was reached, in order.
    """
    browser.evaluate("(document.activeElement.blur(), scrollTo(0, 0))")
    stops: list[dict[str, Any]] = []
    for _ in range(MOST_STEPS):
        for kind in ("keyDown", "keyUp"):
            browser.send("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        stop = browser.evaluate(FOCUS)
        if stop["body"] or (stops and stop["name"] == stops[0]["name"]):
            break
        assert stop["outlined"], stop
        assert stop["seen"], stop
        stops.append(stop)
    names = [stop["name"] for stop in stops]
    assert names
    return names


def read_tree(browser: Browser) -> list[dict[str, Any]]:
    """Return what a screen reader is told: role, name, description and properties of each part, in order."""
    browser.send("Accessibility.enable")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    browser.send("Accessibility.disable")
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            "description": node.get("description", {}).get("value", ""),
            **{one["name"]: one["value"].get("value") for one in node.get("properties", [])},
        }
        for node in nodes
        if not node.get("ignored")
    ]


def _assert_headings(browser: Browser) -> None:
    levels = "[...document.querySelectorAll('h1, h2, h3, h4')].filter(e => e.checkVisibility())"
    found = browser.evaluate(f"{levels}.map(e => [Number(e.tagName[1]), e.innerText.trim()])")
    assert [level for level, _ in found].count(1) == 1
    assert all(text for _, text in found)
    last = 0
    for level, text in found:
        assert level <= last + 1, (text, found)
        last = level


def _assert_names(browser: Browser) -> None:
    tree = read_tree(browser)
    nameless = [node for node in tree if node["role"] in NAMED and not node["name"].strip()]
    assert nameless == [], nameless
    # A chart is one picture, whose caption or name says what it shows, and not a hundred marks without a word.
    marks = [node for node in tree if "graphics" in node["role"]]
    assert marks == [], marks[:3]
    charts = browser.evaluate("[...document.querySelectorAll('main [role=img]')].map(e => e.checkVisibility())")
    drawn = [node for node in tree if node["role"] in ("image", "img")]
    assert len(drawn) >= sum(charts)
    assert all(len(node["description"]) > 40 or len(node["name"]) > 15 for node in drawn), drawn
