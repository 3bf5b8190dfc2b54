// Colours of axes and text come from the style sheet, so light, dark and print need no second drawing.
const specifications = JSON.parse(document.getElementById("specifications").textContent);
const options = { actions: false, renderer: "svg", tooltip: { theme: "coterie" } };
const draw = (name) => {
  const place = document.getElementById("chart-" + name);
  if (place.dataset.drawn) return null;
  place.dataset.drawn = "begun";
  return vegaEmbed(place, specifications[name], options).then(
    () => { place.dataset.drawn = "yes"; },
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
