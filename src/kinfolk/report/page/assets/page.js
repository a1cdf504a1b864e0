"use strict";
// The page: who is picked, which theme, what is drawn when, and what is printed.

const picked = new Set();
const known = new Set(shared.clients);
const FEW = 2000; // names that a list of suggestions can hold

function say(text) { document.getElementById("spoken").textContent = text; }

// Show these clients alone, or, with `more`, add them; those that are already there are taken out.
function pick(names, more = false) {
  const all = names.length > 0 && names.every((name) => picked.has(name));
  const alone = all && picked.size === names.length;
  if (!more) picked.clear();
  for (const name of names) {
    if ((more && all) || alone) picked.delete(name);
    else picked.add(name);
  }
  showPicked();
}

function showPicked() {
  const names = [...picked];
  for (const { view } of views.values()) if (setSignal(view, "picked", names)) view.runAsync();
  for (const one of tables.values()) if (one.who >= 0) one.draw();
  document.getElementById("picked").hidden = names.length === 0;
  const some = names.slice(0, 3).map((name) => make("bdi", {}, name));
  const more = names.length > 3 ? ` and ${names.length - 3} more` : "";
  const list = some.flatMap((one, i) => (i ? [", ", one] : [one]));
  document.getElementById("picked-names").replaceChildren("Picked: ", ...list, more);
  say(names.length ? `${names.length} clients picked: ${names.slice(0, 3).join(", ")}${more}` : "Nobody is picked: all are shown.");
}

function findClient() {
  const field = document.getElementById("find");
  const wanted = field.value.trim();
  if (!wanted) return;
  const lower = wanted.toLowerCase();
  const found = known.has(wanted) ? wanted : shared.clients.find((name) => name.toLowerCase().includes(lower));
  field.setCustomValidity(found ? "" : "No client has this name.");
  if (!found) { field.reportValidity(); return; }
  field.value = "";
  pick([found], true);
}

function startTools() {
  const form = document.querySelector(".find");
  form.addEventListener("submit", (event) => { event.preventDefault(); findClient(); });
  const field = document.getElementById("find");
  field.addEventListener("input", () => field.setCustomValidity(""));
  if (shared.clients.length <= FEW)
    document.getElementById("client-names").append(...shared.clients.map((name) => make("option", { value: name })));
  document.getElementById("clear").addEventListener("click", () => { picked.clear(); showPicked(); field.focus(); });
  const theme = document.getElementById("theme");
  theme.addEventListener("change", () => {
    if (theme.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme.value;
    drawAgain(false);
  });
  darkSystem.addEventListener("change", () => drawAgain(false));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { tip.hidden = true; if (picked.size) { picked.clear(); showPicked(); } }
  });
}

// One chart of several at a time.
function startSwitches() {
  for (const box of document.querySelectorAll(".one-of")) {
    const fieldset = box.querySelector("fieldset");
    if (!fieldset) continue;
    fieldset.hidden = false;
    const show = () => {
      const name = fieldset.querySelector("input:checked").value;
      for (const figure of box.querySelectorAll("figure")) figure.hidden = figure.dataset.chart !== name;
      drawNear();
      drawAgain(false); // the theme or the width may have changed while it was hidden
    };
    fieldset.addEventListener("change", show);
    show();
  }
}

// Draw what is visible or will soon be.
function drawNear() {
  for (const figure of document.querySelectorAll("figure:not([data-drawn])")) {
    const { top, bottom } = figure.getBoundingClientRect();
    if (!figure.hidden && top < innerHeight * 1.5 && bottom > -innerHeight / 2) draw(figure);
  }
}

function startDrawing() {
  const seen = new IntersectionObserver(
    (entries) => entries.forEach((one) => { if (one.isIntersecting && !one.target.dataset.drawn) draw(one.target); }),
    { rootMargin: "50% 0px" },
  );
  document.querySelectorAll("figure").forEach((figure) => { addSlider(figure); seen.observe(figure); });
  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => drawAgain(false), 120);
  });
}

function startTables() {
  for (const box of document.querySelectorAll(".table")) {
    const details = box.closest("details");
    if (details) details.addEventListener("toggle", () => { if (details.open) openTable(box); });
    else openTable(box);
  }
}

// On paper everything is drawn, in light colours, without a pointer.
function startPrinting() {
  addEventListener("beforeprint", () => {
    printing = true;
    document.documentElement.classList.add("printing");
    document.querySelectorAll("figure:not([hidden])").forEach(draw);
  });
  addEventListener("afterprint", () => {
    printing = false;
    document.documentElement.classList.remove("printing");
    drawAgain(true);
  });
}

document.documentElement.classList.add("script");
document.body.append(tip);
startTools();
startTables();
startSwitches();
startDrawing();
startPrinting();
drawNear();
document.documentElement.dataset.ready = "true";
