// Colours of axes and text come from the style sheet, so light, dark and print need no second drawing.
const specifications = JSON.parse(document.getElementById("specifications").textContent);
const options = { actions: false, renderer: "svg", tooltip: { theme: "coterie" } };
const drawings = Object.entries(specifications).map(([name, specification]) => {
  const place = document.getElementById("chart-" + name);
  return vegaEmbed(place, specification, options).then(
    () => { place.dataset.drawn = "yes"; },
    (error) => {
      place.innerHTML = "<p class='failed'></p>";
      place.firstChild.textContent = "This chart could not be drawn: " + error.message;
      console.error(name, error);
    });
});
Promise.all(drawings).then(() => { document.body.dataset.drawn = "yes"; });
