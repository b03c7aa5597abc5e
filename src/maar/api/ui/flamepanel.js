// The flame graph with its search, breadcrumb and tooltip.

import { byId, el } from "./dom.js";
import { FlameGraphView } from "./flamegraph.js";
import { formatCount, formatPercent, formatValue } from "./format.js";
import { decode, findKey, keyText, nameOf, pathTo, search } from "./layout.js";

const CRUMBS_MAX = 6;
const NAME_CHARS_MAX = 2000;

/** `onZoom(key)` and `onSearch(term)` tell what the reader asked for; the state calls back. */
export class FlamePanel {
  #graph = null;
  #unit = null;
  #focus = 0;
  #term = "";

  constructor({ onZoom, onSearch }) {
    this.onZoom = (node) => onZoom(node > 0 ? keyText(this.#graph, node) : "");
    this.view = new FlameGraphView({
      scroller: byId("flame"),
      canvas: byId("flame-canvas"),
      spacer: byId("flame-spacer"),
      marker: byId("marker"),
      tooltip: byId("tip"),
      describe: (node) => this.#describe(node),
      onZoom: (node) => this.onZoom(node),
    });
    byId("search").addEventListener("input", (event) => onSearch(event.target.value));
    byId("reset").addEventListener("click", () => {
      onSearch("");
      onZoom("");
    });
  }

  /** The server's answer; null while there is none. */
  show(answer, { unit = null, zoom = "", search: term = "" } = {}) {
    this.#graph = answer && answer.total > 0 ? decode(answer) : null;
    this.#unit = unit;
    this.#term = term;
    this.#focus = this.#graph ? Math.max(0, findKey(this.#graph, zoom)) : 0;
    this.view.show(this.#graph, { focus: this.#focus });
    byId("flame-empty").hidden = !answer || this.#graph !== null;
    byId("flame-empty").textContent =
      "No samples here. Widen the time range or loosen the label filter.";
    byId("flame-total").textContent = this.#graph
      ? `${formatValue(this.#graph.total, unit)} in ${formatCount(this.#graph.count)} frames`
      : "";
    this.search(term);
    this.#renderCrumbs();
  }

  zoom(key) {
    if (!this.#graph) return;
    this.#focus = Math.max(0, findKey(this.#graph, key));
    this.view.zoomTo(this.#focus);
    this.#renderCrumbs();
  }

  search(term) {
    this.#term = term;
    const input = byId("search");
    if (input.value !== term) input.value = term;
    const found = this.#graph ? search(this.#graph, term) : null;
    this.view.highlight(found);
    byId("matched").textContent = found ? this.#matched(found) : "";
    this.#renderReset();
  }

  #matched({ value, frames }) {
    if (!frames) return "no match";
    return `${formatPercent(value, this.#graph.total)} matched`;
  }

  #describe(node) {
    const graph = this.#graph;
    const [total, self] = [graph.width[node], graph.self[node]];
    const focus = graph.width[this.#focus];
    byId("tip-name").textContent = nameOf(graph, node).slice(0, NAME_CHARS_MAX);
    byId("tip-total").textContent = this.#amount(total, graph.total);
    byId("tip-self").textContent = this.#amount(self, graph.total);
    for (const id of ["tip-part", "tip-part-name"]) byId(id).hidden = this.#focus === 0;
    byId("tip-part").textContent = formatPercent(Math.min(total, focus), focus);
  }

  #amount(value, whole) {
    return `${formatValue(value, this.#unit)} · ${formatPercent(value, whole)}`;
  }

  #renderReset() {
    byId("reset").disabled = this.#focus === 0 && !this.#term;
  }

  #renderCrumbs() {
    const crumbs = byId("crumbs");
    this.#renderReset();
    crumbs.hidden = this.#focus === 0;
    if (crumbs.hidden) {
      crumbs.replaceChildren();
      return;
    }
    const path = pathTo(this.#graph, this.#focus);
    const skipped = Math.max(0, path.length - CRUMBS_MAX);
    const shown = [path[0], ...path.slice(1 + skipped)];
    const items = shown.map((node) => el("li", {}, this.#crumb(node)));
    const gap = el("li", { className: "skipped", textContent: `… ${skipped} more` });
    if (skipped) items.splice(1, 0, gap);
    crumbs.replaceChildren(el("ol", {}, ...items));
  }

  #crumb(node) {
    const name = nameOf(this.#graph, node);
    const crumb = el("button", { type: "button", title: name, textContent: name });
    if (node === this.#focus) crumb.setAttribute("aria-current", "true");
    crumb.addEventListener("click", () => this.onZoom(node));
    return crumb;
  }
}
