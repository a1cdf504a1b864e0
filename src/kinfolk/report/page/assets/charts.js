"use strict";
// Charts: drawn when they come near the window, drawn anew when its width or the theme changes.

const views = new Map(); // name of a chart: its Vega view
const MANY = 3000; // marks; above, a canvas is quicker than elements
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");
let printing = false;

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return !printing && (chosen === "dark" || (chosen !== "light" && darkSystem.matches));
}

// A specification in the colours of the page.
function coloured(node) {
  if (typeof node === "string") return shared.darker[node] || node;
  if (Array.isArray(node)) return node.map(coloured);
  if (node === null || typeof node !== "object") return node;
  return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, name === "datasets" ? value : coloured(value)]));
}

function specOf(name, width) {
  const { spec } = chartData(name);
  const dark = isDark();
  const found = dark ? coloured(spec) : { ...spec };
  found.datasets = Object.fromEntries(Object.entries(spec.datasets).map(([key, value]) => [key, rowsOf(value)]));
  const theme = dark ? shared.dark : shared.light;
  const narrow = width < 480;
  const legend = { ...theme.legend, columns: Math.max(1, Math.floor(width / (narrow ? 150 : 190))), labelLimit: narrow ? 120 : 170 };
  const axis = { ...theme.axis, labelLimit: narrow ? 80 : 150, titleLimit: width };
  const axisX = { ...theme.axisX, tickCount: Math.max(3, Math.floor(width / 110)) };
  found.config = { ...theme, background: null, legend, axis, axisX, ...(spec.config || {}) };
  return found;
}

// Warnings of what is as it should be: charts as wide as their place and as high as their bars, and layers that
// are empty as long as nobody is picked.
const logger = vega.logger(vega.Warn);
const warn = logger.warn.bind(logger);
logger.warn = (...words) => (/^(Dropping "fit-|Infinite extent)/.test(words[0]) ? logger : warn(...words));

// No request leaves the page: pictures are in it.
function loader() {
  const found = vega.loader();
  const inside = (uri) => /^data:image\/(png|jpeg|gif|webp);/.test(uri);
  found.sanitize = async (uri) => {
    if (!inside(uri)) throw new Error("only pictures inside this page are loaded");
    return { href: uri };
  };
  found.load = async () => { throw new Error("nothing is loaded"); };
  return found;
}

function draw(figure) {
  const name = figure.dataset.chart;
  const place = figure.querySelector(".picture");
  if (!place || !place.clientWidth) return;
  const old = views.get(name);
  const spec = specOf(name, place.clientWidth);
  if (old && old.round !== undefined) spec.params = spec.params.map((one) => (one.name === "round" ? { ...one, value: old.round } : one));
  if (old) old.view.finalize();
  place.replaceChildren();
  const rows = Object.values(spec.datasets).reduce((sum, one) => sum + one.length, 0);
  const runtime = vega.parse(vegaLite.compile(spec, { logger }).spec, null, { ast: true });
  const view = new vega.View(runtime, {
    expr: vegaInterpreter, loader: loader(), logger, tooltip: showTip,
    renderer: rows > MANY && !printing ? "canvas" : "svg", hover: true,
  });
  view.initialize(place);
  if (picked.size) setSignal(view, "picked", [...picked]);
  view.run();
  view.addEventListener("click", clicked);
  // The words in its place are beside it; a thousand unnamed marks would say nothing.
  for (const one of place.querySelectorAll("svg, canvas")) one.setAttribute("aria-hidden", "true");
  views.set(name, { view, width: place.clientWidth, dark: isDark(), round: old && old.round });
  figure.dataset.drawn = "true";
}

function setSignal(view, name, value) {
  try { view.signal(name, value); } catch { return false; } // a chart that does not know it
  return true;
}

// The datum of a mark; of a region around the nearest mark, that mark's.
function datumOf(item) {
  const datum = item && item.datum;
  return datum && datum.datum !== undefined && datum.mark ? datum.datum : datum;
}

function clicked(event, item) {
  const datum = datumOf(item);
  if (!datum) return;
  const more = event.shiftKey || event.ctrlKey || event.metaKey;
  if (datum.client !== undefined && datum.client !== null) pick([String(datum.client)], more);
  else if (datum.group !== undefined && datum.group !== null) {
    const groups = shared.members[datum.method] || Object.values(shared.members)[0] || {};
    pick(groups[String(datum.group)] || [], more);
  }
}

// What a mark says beside the pointer.
const tip = make("div", { id: "tip", hidden: true, "aria-hidden": "true" });
function showTip(handler, event, item, value) {
  tip.hidden = value === null || value === undefined || value === "";
  if (tip.hidden) return;
  const lines = typeof value === "object" ? Object.entries(value) : [["", value]];
  tip.replaceChildren(...lines.flatMap(([name, one]) => [make("span", { class: "name" }, name), make("span", {}, make("bdi", {}, String(one)))]));
  const edge = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, edge))}px`;
  tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
}

// The slider of a chart that shows one round at a time.
function addSlider(figure) {
  const box = figure.querySelector(".controls");
  const { rounds } = chartData(figure.dataset.chart);
  if (!box || !rounds || rounds.length < 2) return;
  const id = `${figure.id}-round`;
  const told = make("output", { for: id }, String(rounds.at(-1)));
  const slider = make("input", {
    type: "range", id, min: 0, max: rounds.length - 1, step: 1, value: rounds.length - 1, "aria-valuetext": `round ${rounds.at(-1)}`,
    oninput: () => {
      const round = rounds[Number(slider.value)];
      slider.setAttribute("aria-valuetext", `round ${round}`);
      told.textContent = String(round);
      if (!views.has(figure.dataset.chart)) draw(figure);
      const one = views.get(figure.dataset.chart);
      one.round = round;
      setSignal(one.view, "round", round);
      one.view.runAsync();
    },
  });
  box.append(make("label", { for: id }, "Round"), slider, told);
}

function drawAgain(all) {
  for (const figure of document.querySelectorAll("figure[data-drawn]")) {
    const place = figure.querySelector(".picture");
    const one = views.get(figure.dataset.chart);
    if (place.clientWidth && one && (all || one.width !== place.clientWidth || one.dark !== isDark())) draw(figure);
  }
}
