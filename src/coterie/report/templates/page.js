// Tables are made ready before charts are drawn, so that a long one is laid out once.
// A table that can be sorted has a button in each heading. Cells without a number stay last.
const numberOf = (text) => parseFloat(text.replaceAll(",", "").replace("−", "-").replace("∞", "Infinity"));
const compare = (a, b) => {
  const [x, y] = [numberOf(a), numberOf(b)];
  if (!isNaN(x) && !isNaN(y)) return x - y;
  return a.localeCompare(b, "en", { numeric: true });
};
const sortBy = (table, column, direction) => {
  const heading = table.tHead.rows[0].cells[column], body = table.tBodies[0];
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  const text = (row) => row.cells[column].textContent;
  const missing = (row) => text(row) === "–";
  body.append(...[...body.rows].sort(
    (a, b) => missing(a) - missing(b) || direction * compare(text(a), text(b))));
};
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    button.addEventListener("click", () =>
      sortBy(table, column, heading.getAttribute("aria-sort") === "ascending" ? -1 : 1));
    heading.replaceChildren(button);
  });
}

// An interval in round brackets stands below its value, so that no column has to leave the page.
const write = (cell, text) => {
  const [, value, interval] = text.match(/^(.*) (\(.*\u00a0to\u00a0.*\))$/) ?? [null, text];
  cell.textContent = interval ? value + " " : value;
  if (!interval) return;
  const below = document.createElement("span");
  below.className = "below";
  below.textContent = interval;
  cell.append(below);
};
for (const cell of document.querySelectorAll("td")) {
  if (cell.textContent.includes("\u00a0to\u00a0")) write(cell, cell.textContent);
}

// A table of clients shows one method at a time; what the others come to waits beside it.
for (const part of document.querySelectorAll(".by-method")) {
  if (!part.querySelector("select")) continue;
  const table = part.querySelector("table"), rows = [...table.tBodies[0].rows];
  const gain = 1, score = 2;
  let choices;
  part.querySelector(".choose").hidden = false;
  part.querySelector("select").addEventListener("change", (event) => {
    choices ??= JSON.parse(part.querySelector("script").textContent);
    const choice = choices[event.target.selectedIndex];
    part.querySelector(".says").textContent = choice.says;
    table.tHead.rows[0].cells[score].querySelector("button").textContent = choice.title;
    choice.cells.forEach((texts, row) => texts.forEach((text, i) => write(rows[row].cells[gain + i], text)));
    sortBy(table, gain, 1);
  });
}

// Colours of axes and text come from the style sheet, so light, dark and print need no second drawing.
const specifications = JSON.parse(document.getElementById("specifications").textContent);
const options = { actions: false, renderer: "svg", tooltip: { theme: "coterie" } };
const wide = 640, row = 17;
// A legend of many columns becomes one of fewer on a narrow page, and the chart grows by the rows this takes.
const narrowed = (part, share) => {
  if (!part || typeof part !== "object") return 0;
  let rows = 0;
  const columns = part.legend?.columns, entries = part.scale?.domain?.length;
  if (columns && entries) {
    part.legend.columns = Math.max(Math.floor(columns * share), 1);
    rows = Math.ceil(entries / part.legend.columns) - Math.ceil(entries / columns);
  }
  const inside = Object.entries(part).filter(([key]) => key !== "datasets");
  return Math.max(rows, ...inside.map(([, inner]) => narrowed(inner, share)));
};
// A legend begins where the axis ends, so a wide axis leaves it less room than the page: it gets fewer columns still.
const isCut = (place) => {
  const edge = place.getBoundingClientRect().right + 1;
  return [...place.querySelectorAll(".role-legend")].some((legend) => legend.getBoundingClientRect().right > edge);
};
const embed = async (place, name) => {
  await vegaEmbed(place, specifications[name], options);
  for (let attempt = 0; attempt < 4 && isCut(place); attempt++) {
    const rows = narrowed(specifications[name], 0.5);
    if (rows <= 0) return;
    place.style.height = place.clientHeight + row * rows + "px";
    await vegaEmbed(place, specifications[name], options);
  }
};
const draw = (name) => {
  const place = document.getElementById("chart-" + name);
  if (place.dataset.drawn) return null;
  place.dataset.drawn = "begun";
  const rows = place.clientWidth < wide ? narrowed(specifications[name], place.clientWidth / wide) : 0;
  if (rows > 0) place.style.height = place.clientHeight + row * rows + "px";
  return embed(place, name).then(
    () => {
      // Vega offers every mark to a screen reader, hundreds a chart; here a chart is one picture, and its caption says it.
      place.setAttribute("role", "img");
      place.removeAttribute("aria-roledescription");
      place.querySelector("svg").setAttribute("aria-hidden", "true");
      place.dataset.drawn = "yes";
    },
    (error) => {
      place.innerHTML = "<p class='failed'></p>";
      place.firstChild.textContent = "This chart could not be drawn: " + error.message;
      console.error(name, error);
    });
};
// What is folded has no width yet: it is drawn when it is opened, or printed.
const visible = () => Object.keys(specifications).filter(
  (name) => !document.getElementById("chart-" + name).closest("details:not([open])"));
const drawVisible = () => Promise.all(visible().map(draw));
const folded = [...document.querySelectorAll("details")];
for (const part of folded) part.addEventListener("toggle", drawVisible);
addEventListener("beforeprint", () => {
  for (const part of folded) part.open = true;
  drawVisible();
});
drawVisible().then(() => { document.body.dataset.drawn = "yes"; });
