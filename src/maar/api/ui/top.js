// The functions that cost most, exact and sortable; a click shows one in the graph.

import { el } from "./dom.js";
import { formatPercent, formatValue } from "./format.js";
import { pathEnd } from "./palette.js";

const PAGE = 100;

export class TopView {
  #top = null;
  #sort = "self";
  #shown = PAGE;
  #picked = "";

  constructor({ table, more, note, onPick, onSort }) {
    Object.assign(this, { table, more, note, onPick });
    this.body = table.tBodies[0];
    for (const button of table.tHead.querySelectorAll("button")) {
      button.addEventListener("click", () => onSort(button.dataset.sort));
    }
    more.addEventListener("click", () => {
      this.#shown += PAGE;
      this.#render();
    });
  }

  /** {rows, total, unit, cut}, or null for none. */
  show(top) {
    this.#top = top;
    this.#shown = PAGE;
    this.#render();
  }

  sortBy(column) {
    this.#sort = column;
    this.#render();
  }

  /** Marks the function that the graph highlights. */
  pick(name) {
    this.#picked = name;
    for (const row of this.body.rows) row.classList.toggle("picked", row.dataset.name === name);
  }

  #render() {
    const rows = [...(this.#top?.rows ?? [])];
    const [first, second] = this.#sort === "self" ? ["self", "total"] : ["total", "self"];
    rows.sort((a, b) => b[first] - a[first] || b[second] - a[second] || (a.name < b.name ? -1 : 1));
    this.body.replaceChildren(...rows.slice(0, this.#shown).map((row) => this.#row(row)));
    this.more.hidden = rows.length <= this.#shown;
    this.note.textContent = this.#top?.cut ? `the first ${rows.length} functions by self` : "";
    for (const button of this.table.tHead.querySelectorAll("button")) {
      const sorted = button.dataset.sort === this.#sort ? "descending" : "none";
      button.closest("th").setAttribute("aria-sort", sorted);
    }
    this.pick(this.#picked);
  }

  #row({ name, self, total }) {
    const label = name || "(unnamed)";
    const cut = pathEnd(label);
    const button = el(
      "button",
      { type: "button", className: "function", title: label },
      el("span", { className: "path", textContent: label.slice(0, cut) }),
      el("span", { className: "name", textContent: label.slice(cut) }),
    );
    button.addEventListener("click", () => this.onPick(label));
    const row = el("tr", {}, el("td", {}, button), this.#cell(self), this.#cell(total));
    row.dataset.name = label;
    return row;
  }

  #cell(value) {
    const { total, unit } = this.#top;
    const cell = el(
      "td",
      { className: "number" },
      el("span", { className: "value", textContent: formatValue(value, unit) }),
      el("span", { className: "share", textContent: formatPercent(value, total) }),
    );
    cell.style.setProperty("--share", `${total > 0 ? (100 * value) / total : 0}%`);
    return cell;
  }
}
