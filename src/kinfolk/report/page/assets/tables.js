"use strict";
// Tables: sorted by the buttons in their heads, all rows as a CSV file, names of clients as buttons.

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

// What a cell is sorted by: its number if it begins with one, else its text.
function key(value) {
  if (typeof value === "number") return value;
  if (typeof value !== "string") return value === null || value === undefined ? null : Number(value);
  const plain = value.replace(/[,\s]/g, "").replace(/[−–]/g, "-");
  const found = /^[<=+]*(-?\d+(\.\d+)?(e[+-]?\d+)?)/.exec(plain);
  return found ? Number(found[1]) : value.trim() || null;
}

// Numbers before words, what is missing last.
function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return collator.compare(a, b);
}

function shownNumber(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  return value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) < 1e4 ? 4 : 12 });
}

class Table {
  constructor(box) {
    this.box = box;
    this.table = box.querySelector("table");
    this.name = box.dataset.table;
    const { rows, columns } = chartData(this.name).table;
    this.heads = columns.map(([head]) => head);
    this.packed = columns.map(([, number]) => number);
    this.order = Array.from({ length: rows }, (_, i) => i);
    this.who = this.heads.indexOf("client");
    this.numbers = [...this.table.querySelectorAll("thead th")].map((th) => th.classList.contains("number"));
    this.addHeads();
    box.querySelector(".under").append(" ", make("button", { type: "button", class: "csv", onclick: () => this.save() }, "Save as CSV"));
    this.draw();
  }

  cells(i) { return column(this.packed[i]); }

  addHeads() {
    this.table.querySelectorAll("thead th").forEach((th, i) => {
      const name = th.textContent;
      th.replaceChildren(make("button", { type: "button", onclick: () => this.sort(i) }, name));
      th.setAttribute("aria-sort", "none");
    });
  }

  sort(i) {
    const heads = this.table.querySelectorAll("thead th");
    // Numbers are first wanted from the largest.
    const first = this.numbers[i] ? "descending" : "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    const way = heads[i].getAttribute("aria-sort") === first ? second : first;
    heads.forEach((th, j) => th.setAttribute("aria-sort", j === i ? way : "none"));
    const keys = this.cells(i).map(key);
    const sign = way === "ascending" ? 1 : -1;
    this.order.sort((a, b) => {
      if (keys[a] === null || keys[b] === null) return compare(keys[a], keys[b]) || a - b;
      return sign * compare(keys[a], keys[b]) || a - b;
    });
    this.draw();
    say(`Sorted by ${this.heads[i]}, ${way}.`);
  }

  // The rows of picked clients first, then as many as there is room for.
  draw() {
    const names = this.who >= 0 ? this.cells(this.who) : [];
    const up = picked.size && this.who >= 0 ? this.order.filter((row) => picked.has(names[row])) : [];
    const others = up.length ? this.order.filter((row) => !picked.has(names[row])) : this.order;
    const shown = [...up, ...others].slice(0, Math.max(shared.rows, Math.min(up.length, 3 * shared.rows)));
    const focused = this.table.contains(document.activeElement) ? document.activeElement.dataset.client : undefined;
    const lines = shown.map((row) => {
      const line = make("tr", this.who >= 0 && picked.has(names[row]) ? { class: "is-picked" } : {});
      this.heads.forEach((_, i) => {
        const value = this.cells(i)[row];
        const cell = make("td", this.numbers[i] ? { class: "number" } : {});
        if (i === this.who && known.has(value)) cell.append(this.button(value));
        else cell.textContent = shownNumber(value);
        line.append(cell);
      });
      return line;
    });
    this.table.tBodies[0].replaceChildren(...lines);
    if (focused !== undefined) {
      const again = [...this.table.querySelectorAll("button.pick")].find((one) => one.dataset.client === focused);
      if (again) again.focus();
    }
  }

  button(name) {
    const attributes = { type: "button", class: "pick", "data-client": name, "aria-pressed": String(picked.has(name)) };
    return make("button", { ...attributes, onclick: (event) => pick([name], event.shiftKey || picked.has(name)) }, name);
  }

  save() {
    const columns = this.heads.map((_, i) => this.cells(i));
    const lines = [this.heads, ...this.order.map((row) => columns.map((cells) => cells[row]))];
    const text = lines.map((line) => line.map(csvCell).join(",")).join("\r\n") + "\r\n";
    const link = make("a", { href: URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" })), download: `${this.name}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
}

// A spreadsheet must not take a name for a formula.
function csvCell(value) {
  if (typeof value === "number") return String(value);
  const text = value === null || value === undefined ? "" : String(value);
  const safe = /^[=+\-@\t\r]/.test(text) && !/^[+-]?[\d.]+([eE][+-]?\d+)?$/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

// Tables are made when they are first looked at.
const tables = new Map();
function openTable(box) {
  if (!tables.has(box)) tables.set(box, new Table(box));
}
