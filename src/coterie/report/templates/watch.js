// Everything that comes from a run is written as text; nothing here makes HTML of it.
"use strict";
const every = 1500, palette = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
const get = (id) => document.getElementById(id);
const make = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text !== null && text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const draw = (tag, attributes, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const missing = "–";
const number = (value, isShare) =>
  value === null || value === undefined ? missing : isShare ? (100 * value).toFixed(1) + "%"
    : Math.abs(value) >= 1e6 ? value.toPrecision(3)
    : value.toLocaleString("en", Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
const clock = (seconds) => {
  if (seconds === null || seconds === undefined) return missing;
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  return whole < 3600 ? Math.floor(whole / 60) + ":" + two(whole % 60)
    : Math.floor(whole / 3600) + ":" + two(Math.floor(whole / 60) % 60) + ":" + two(whole % 60);
};
// Names that belong together often begin alike, so that their ends tell them apart.
const cut = (name, most) => {
  const half = Math.floor((most - 1) / 2);
  return name.length > most ? name.slice(0, most - 1 - half) + "…" + name.slice(-half) : name;
};
const volume = (bytes) => (bytes / 1e6).toPrecision(3) * 1 + " MB";

// ---- asking
let runs = [], failed = false;
const say = (text) => { get("said").textContent = text; };
const ask = async (what, name, method = "GET") => {
  const query = name === undefined ? "" : "?name=" + encodeURIComponent(name);
  const answer = await fetch("api/" + what + query, { method, cache: "no-store" });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.problem || "the server refused");
  return found;
};

// ---- the index
const columns = [
  ["chosen", null, (run) => tick(run)],
  ["run", "name", (run) => link(run), "text name"],
  ["state", "state", (run) => make("span", run.state, { class: run.state }), "text"],
  ["method", "method", (run) => run.method, "text wide"],
  ["data", "data", (run) => [run.data, run.split].filter(Boolean).join(", "), "text wide wrap"],
  ["round", (run) => run.rounds ? run.round / run.rounds : 0, (run) => progress(run)],
  [() => sharedMetric() ?? "score", "value", (run) => number(run.value, run.is_share) +
    (sharedMetric() === null && run.metric ? " " + run.metric : ""), "wrap"],
  ["worst 10 %", "worst10", (run) => number(run.worst10, run.is_share), "wide"],
  ["groups", "groups", (run) => run.groups ?? missing, "wide"],
  ["failures", "failed", (run) => make("span", run.failed, run.failed ? { class: "bad" } : {}), "wide"],
  ["time", "seconds", (run) => clock(run.seconds), "wide"],
  ["left", "left", (run) => clock(run.left)],
  ["written", "updated", (run) => (run.updated || "").replace("T", " ").slice(0, 16) || missing, "wide"],
];
const sharedMetric = () => {
  const metrics = new Set(runs.map((run) => run.metric).filter(Boolean));
  return metrics.size === 1 ? [...metrics][0] : null;
};
let sorted = { by: 12, down: true };
const ticked = new Set();
const tick = (run) => {
  const box = make("input", null, { type: "checkbox", "aria-label": "choose " + run.name });
  box.checked = ticked.has(run.name);
  box.addEventListener("change", () => {
    if (box.checked) ticked.add(run.name); else ticked.delete(run.name);
    get("beside").disabled = ticked.size < 2;
  });
  return box;
};
const link = (run) => {
  const made = make("a", run.name, { href: "#run=" + encodeURIComponent(run.name) });
  if (!run.problem) return made;
  const both = make("span");
  both.append(made, make("div", run.problem, { class: "bad" }));
  return both;
};
const progress = (run) => {
  const both = make("span"), bar = make("span", null, { class: "bar wide" }), done = make("i");
  done.style.width = (run.rounds ? 100 * run.round / run.rounds : 0) + "%";
  bar.append(done);
  both.append(run.round + "/" + run.rounds + " ", bar);
  return both;
};
const key = (run) => {
  const by = columns[sorted.by][1];
  return typeof by === "function" ? by(run) : run[by];
};
const compared = (one, other) => {
  const [a, b] = [key(one), key(other)];
  if (a === null || a === undefined || b === null || b === undefined) {
    return (a === null || a === undefined) - (b === null || b === undefined);
  }
  const order = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
  return sorted.down ? -order : order;
};
const heads = () => {
  const row = make("tr");
  columns.forEach(([named, by, , kind], place) => {
    const title = typeof named === "function" ? named() : named;
    const head = make("th", null, { class: kind || "", scope: "col" });
    if (by) {
      const button = make("button", title + (place === sorted.by ? (sorted.down ? " ↓" : " ↑") : ""), { type: "button" });
      button.addEventListener("click", () => {
        sorted = { by: place, down: place === sorted.by ? !sorted.down : false };
        showIndex();
      });
      head.append(button);
      if (place === sorted.by) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    } else head.append(make("span", title, { class: "unseen" }));
    row.append(head);
  });
  return row;
};
const wanted = (run) => {
  const text = [run.name, run.method, run.data, run.split, run.runtime].join(" ").toLowerCase();
  const state = get("state").value;
  return (!state || run.state === state) &&
    get("search").value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};
// What is drawn anew loses the focus: whoever went there with the keyboard gets it back, in the same row or card.
const keepFocus = (place) => {
  const was = document.activeElement;
  if (!place.contains(was)) return () => {};
  const of = (element) => element.closest("[data-name]")?.dataset.name;
  const alike = (element) => element.tagName === was.tagName && element.className === was.className && of(element) === of(was);
  return () => [...place.querySelectorAll("a, input, button, [tabindex]")].find(alike)?.focus({ preventScroll: true });
};
const showIndex = () => {
  const shown = runs.filter(wanted).sort(compared);
  const sortedBy = document.activeElement?.closest?.("thead") ? sorted.by : null, refocus = keepFocus(get("runs").tBodies[0]);
  get("runs").tHead.replaceChildren(heads());
  get("runs").tBodies[0].replaceChildren(...shown.map((run) => {
    const row = make("tr", null, { "data-name": run.name });
    for (const [, , cell, kind] of columns) {
      const place = make("td", null, { class: kind || "" });
      place.append(cell(run));
      row.append(place);
    }
    return row;
  }));
  if (sortedBy !== null) get("runs").tHead.rows[0].cells[sortedBy].querySelector("button")?.focus();
  else refocus();
  const going = runs.filter((run) => run.state === "running").length;
  get("count").textContent = runs.length
    ? shown.length + " of " + runs.length + " runs, " + going + " running" : "No run is in this folder yet.";
};

// ---- charts
const scale = (low, high, from, to) => (value) => from + (value - low) / (high - low || 1) * (to - from);
// Values at steps of 1, 2 or 5, written with as many digits as tell them apart.
const rounded = (low, high, unit) => {
  const rough = unit * (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough * .999);
  const ticks = [];
  for (let at = Math.ceil(unit * low / step); at * step <= unit * high; at++) ticks.push(at * step / unit);
  return { ticks, decimals: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
};
const chart = (series, title, isShare, width) => {
  const height = Math.round(140 + width / 5), left = 54, bottom = 26, top = 8;
  const points = series.flatMap((one) => one.points);
  const ends = series.filter((one) => one.points.length).map(({ name, points }) =>
    name + " is at " + number(points.at(-1)[1], isShare) + " in round " + points.at(-1)[0]);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title + ". " + ends.join("; ") });
  if (!points.length) return svg;
  const values = points.map((p) => p[1]), last = Math.max(...points.map((p) => p[0]), 2);
  const margin = (Math.max(...values) - Math.min(...values)) * .06 || Math.abs(values[0]) * .05 || .05;
  const within = isShare ? [0, 1] : [-Infinity, Infinity];
  const low = Math.max(Math.min(...values) - margin, within[0]), high = Math.min(Math.max(...values) + margin, within[1]);
  const { ticks, decimals } = rounded(low, high, isShare ? 100 : 1);
  const x = scale(1, last, left, width - 10), y = scale(low, high, height - bottom, top);
  for (const value of ticks) {
    svg.append(draw("line", { x1: left, x2: width - 10, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, isShare
      ? (100 * value).toFixed(decimals) + "%"
      : Math.abs(value) >= 1e6 ? value.toPrecision(3) : value.toFixed(decimals)));
  }
  for (const round of new Set([1, Math.round(last / 2), last])) {
    svg.append(draw("text", { x: x(round), y: height - 8, "text-anchor": round === last ? "end" : "middle" },
      round === last ? "round " + round : round));
  }
  for (const one of series) {
    const path = one.points.map(([round, value]) => x(round).toFixed(1) + "," + y(value).toFixed(1)).join(" ");
    svg.append(draw("polyline", { points: path, class: "curve", stroke: one.colour }));
    if (one.points.length === 1) {
      svg.append(draw("circle", { cx: x(one.points[0][0]), cy: y(one.points[0][1]), r: 3, fill: one.colour }));
    }
  }
  return svg;
};
const legend = (entries) => {
  const list = make("ul", null, { class: "legend" });
  for (const [text, colour] of entries) {
    const item = make("li"), mark = make("i");
    mark.style.background = colour;
    item.append(mark, text);
    list.append(item);
  }
  return list;
};
const members = (found, width) => {
  const { rounds, clients, colours } = found;
  const row = clients.length > 40 ? 6 : 15, left = clients.length > 40 ? 0 : 110;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${row * clients.length + 22}`, "aria-hidden": "true" });
  const step = (width - left) / rounds.length;
  clients.forEach((client, place) => {
    if (left) {
      const label = draw("text", { x: left - 5, y: place * row + 11, "text-anchor": "end" }, cut(client.name, 16));
      label.append(draw("title", {}, client.name));
      svg.append(label);
    }
    client.groups.forEach((group, column) => {
      if (group === null) return;
      const cell = draw("rect", { x: left + column * step, y: place * row, width: step > 4 ? step - .5 : step + .3,
        height: row - 1, fill: colours[group] });
      cell.append(draw("title", {}, client.name + ", round " + rounds[column] + ": " +
        (group < 0 ? "no group" : "group " + group)));
      svg.append(cell);
    });
  });
  const foot = row * clients.length + 16;
  svg.append(draw("text", { x: left, y: foot }, "round " + rounds[0]));
  svg.append(draw("text", { x: width, y: foot, "text-anchor": "end" }, rounds[rounds.length - 1]));
  // One picture to a screen reader, not a mark for each client and round.
  const picture = make("div", null, { role: "img", "aria-label": "The group of each client in each evaluated round" });
  picture.append(svg);
  return picture;
};

// ---- one run, or several beside each other
const act = async (what, name) => {
  try {
    await ask(what, name, "POST");
    say(what === "stop" ? name + " was asked to stop; it ends after its round" : name + " is resumed");
  } catch (error) { say(error.message); }
  refresh();
};
const facts = (run) => {
  const list = make("dl");
  const add = (term, text, kind) => list.append(make("dt", term), make("dd", text, kind ? { class: kind } : {}));
  add("state", run.starting ? "starting" : run.state, run.state);
  add("method", run.method);
  add("data", [run.data, run.split].filter(Boolean).join(", "));
  add("round", run.round + " of " + run.rounds);
  add("time left", clock(run.left));
  add(run.metric || "score", number(run.value, run.is_share));
  add("worst 10 %", number(run.worst10, run.is_share));
  add("groups", run.groups ?? missing);
  if (run.ari !== null) add("ARI", run.ari.toFixed(2));
  add("sent", volume(run.bytes));
  add("time", clock(run.seconds));
  if (run.runtime !== "local") add("runtime", run.runtime);
  return list;
};
// The widths of cards. A chart is as wide as its card, so that its words are as large as those around it on a phone, too.
const roomOf = (place, count) => {
  const grid = make("div", null, { class: "shown" });
  for (let i = 0; i < count; i++) grid.append(make("article", "", { class: "card" }));
  place.replaceChildren(grid);
  return [...grid.children].map((child) => Math.max(child.clientWidth - 32, 200));
};
const card = (run, width, several) => {
  const place = make("article", null, { class: "card", "data-name": run.name });
  if (several) place.append(make("h2", run.name));
  const actions = make("div", null, { class: "actions" });
  if (run.state === "running") {
    const stop = make("button", "Stop", { type: "button", class: "stop" });
    stop.addEventListener("click", () => act("stop", run.name));
    actions.append(stop);
  } else if (run.state === "interrupted" && !run.starting) {
    const resume = make("button", "Resume", { type: "button", class: "resume" });
    resume.addEventListener("click", () => act("resume", run.name));
    actions.append(resume);
  }
  place.append(actions, facts(run));
  for (const text of [run.problem, run.resumed].filter(Boolean)) place.append(make("p", text, { class: "bad" }));
  if (run.warnings?.length) {
    const list = make("ul", null, { class: "said", tabindex: "0" });
    list.append(...run.warnings.map((text) => make("li", text)));
    place.append(make("h3", "Warnings"), list);
  }
  if (run.members?.rounds.length) {
    const known = Object.entries(run.members.colours).filter(([group]) => group >= 0);
    const moves = (run.moved || []).reduce((sum, [, count]) => sum + count, 0);
    place.append(make("h3", "Groups"));
    place.append(make("p", known.length + " group" + (known.length === 1 ? "" : "s") + " so far, " + moves +
      " move" + (moves === 1 ? "" : "s") + (run.members.total > run.members.clients.length
        ? "; " + run.members.clients.length + " of " + run.members.total + " clients are shown" : ""), { class: "note" }));
    if (known.length) place.append(legend(known.map(([group, colour]) => ["group " + group, colour])));
    place.append(members(run.members, width));
  }
  if (run.failures?.count) {
    const list = make("ul", null, { class: "said failures", tabindex: "0" });
    list.append(...run.failures.last.map(([round, client, why]) =>
      make("li", "round " + round + ", client " + client + ": " + why)));
    place.append(make("h3", "Answers that did not come: " + run.failures.count), list);
  }
  return place;
};
const showRuns = (found) => {
  const place = get("runs-shown"), open = window.scrollY, refocus = keepFocus(place);
  const kinds = new Map();
  found.forEach((run, which) => (run.curves || []).forEach((curve) => {
    const title = curve.key === "worst10" ? run.metric + ", worst 10 %" : curve.title;
    if (!kinds.has(title)) kinds.set(title, { isShare: curve.is_share, series: [] });
    kinds.get(title).series.push({ name: run.name, points: curve.points, colour: palette[which % palette.length] });
  }));
  const charts = make("div", null, { class: "shown" });
  const room = roomOf(place, kinds.size), cardRoom = roomOf(place, found.length);
  for (const [title, { isShare, series }] of kinds) {
    const card = make("article", null, { class: "card" });
    card.append(make("h2", title), chart(series, title, isShare, room[charts.children.length]));
    charts.append(card);
  }
  const cards = make("div", null, { class: "shown" });
  cards.append(...found.map((run, which) => card(run, cardRoom[which], found.length > 1)));
  cards.classList.add("cards");
  const parts = [make("p", null, { class: "note" })];
  parts[0].append(make("a", "all runs", { href: "#" }));
  if (found.length > 1) parts.push(legend(found.map((run, which) => [run.name, palette[which % palette.length]])));
  place.replaceChildren(...parts, charts, cards);
  refocus();
  window.scrollTo(0, open);
};

// ---- which of them, again and again
const named = () => {
  const [what, rest] = location.hash.slice(1).split("=");
  return what === "run" && rest ? rest.split(",").map(decodeURIComponent) : [];
};
const entitle = (names) => {
  document.title = (names.length ? names.join(", ") : "runs") + " – Coterie";
  get("title").textContent = names.length === 1 ? names[0] : "Runs";
};
const show = (single) => { get("index").hidden = single; get("runs-shown").hidden = !single; };
let asked = 0;
const refresh = async () => {
  const mine = ++asked, names = named();
  try {
    if (names.length) {
      const found = await Promise.all(names.map((name) => ask("run", name)));
      if (mine !== asked) return;
      show(true);
      entitle(found.map((run) => run.name));
      showRuns(found);
    } else {
      const found = await ask("runs");
      if (mine !== asked) return;
      runs = found.runs;
      get("folder").textContent = found.folder;
      for (const name of ticked) if (!runs.some((run) => run.name === name)) ticked.delete(name);
      show(false);
      entitle([]);
      showIndex();
    }
    if (failed) say("");
    failed = false;
  } catch (error) {
    if (mine !== asked) return;
    failed = true;
    say(error instanceof TypeError ? "coterie watch has ended; what is shown is as it was" : error.message);
  }
  document.body.dataset.drawn = "yes";
};
get("search").addEventListener("input", showIndex);
get("state").addEventListener("change", showIndex);
get("index").querySelector("form").addEventListener("submit", (event) => event.preventDefault());
get("beside").addEventListener("click", () => {
  location.hash = "run=" + [...ticked].map(encodeURIComponent).join(",");
});
addEventListener("hashchange", () => { say(""); refresh(); });
const again = async () => {
  if (!document.hidden) await refresh();
  setTimeout(again, every);
};
again();
