// The list of services at the side, with a filter once it is long.

import { el } from "./dom.js";
import { byInterest, typeName } from "./format.js";

const FILTER_FROM = 9;

export class ServiceList {
  #names = [];
  #chosen = "";

  constructor({ list, count, filter, onChoose }) {
    Object.assign(this, { list, count, filter, onChoose });
    filter.addEventListener("input", () => this.#render());
  }

  show(names, chosen) {
    this.#names = [...names].sort((a, b) => a.localeCompare(b));
    this.#chosen = chosen;
    this.filter.hidden = names.length < FILTER_FROM;
    this.count.textContent = names.length ? String(names.length) : "none";
    this.#render();
  }

  #render() {
    const wanted = this.filter.hidden ? "" : this.filter.value.trim().toLowerCase();
    const names = this.#names.filter((name) => name.toLowerCase().includes(wanted));
    this.list.replaceChildren(...names.map((name) => el("li", {}, this.#button(name))));
  }

  #button(name) {
    const button = el("button", { type: "button", textContent: name, title: name });
    if (name === this.#chosen) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => this.onChoose(name));
    return button;
  }
}

/** One radio button per profile type; arrow keys work as in any radio group. */
export function renderTypes(group, types, chosen, onChoose) {
  const options = [...types].sort(byInterest).map((type) => {
    const input = el("input", { type: "radio", name: "type", value: type, checked: type === chosen });
    input.addEventListener("change", () => onChoose(type));
    return el("label", { title: type }, input, el("span", { textContent: typeName(type) }));
  });
  const focused = group.contains(document.activeElement);
  group.replaceChildren(...options);
  if (focused) group.querySelector("input:checked")?.focus();
}
