"use strict";
// The numbers of the page, packed by column as `store.py` does it.

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const shared = read("shared-data");
const unpacked = new Map();

// A column as an array, from its number or its packed form.
function column(packed) {
  if (typeof packed === "number") {
    if (!unpacked.has(packed)) unpacked.set(packed, column(shared.columns[packed]));
    return unpacked.get(packed);
  }
  if (Array.isArray(packed)) return packed;
  if (packed.words) return packed.at.map((place) => packed.words[place]);
  if (packed.tile) {
    const tile = column(packed.tile);
    return Array.from({ length: tile.length * packed.times }, (_, i) => tile[i % tile.length]);
  }
  const found = [];
  for (let i = 0; i < packed.runs.length; i += 2)
    for (let n = 0; n < packed.runs[i + 1]; n++) found.push(packed.runs[i]);
  return found;
}

// Rows as objects of their own, since Vega writes into them.
function rowsOf(reference) {
  const names = Object.keys(reference.columns);
  const columns = names.map((name) => column(reference.columns[name]));
  return Array.from({ length: reference.rows }, (_, row) => {
    const found = {};
    names.forEach((name, i) => { found[name] = columns[i][row]; });
    return found;
  });
}

// What a chart is drawn from and what its table holds; read when it is first needed.
const charts = new Map();
function chartData(name) {
  if (!charts.has(name)) charts.set(name, read(`${name}-data`));
  return charts.get(name);
}

// An element with attributes and children; text is text.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
