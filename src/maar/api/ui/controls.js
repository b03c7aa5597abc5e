// The bar on top: reads the state into its fields and the reader's wishes out of them.

import { byId, el } from "./dom.js";
import { inputTime } from "./format.js";
import { CUSTOM, DEFAULTS, PRESETS, REFRESH_SECONDS, resolve } from "./state.js";

/** `go(patch)` changes the state; `refresh()` asks again; `complain(sentence)` shows an error. */
export function bindControls({ state, go, refresh, complain }) {
  fillSelects();
  byId("tenant").addEventListener("change", () => go({ ...subject(), tenant: tenant() }));
  byId("refresh").addEventListener("click", () => refresh());
  byId("every").addEventListener("change", (event) => go({ refresh: Number(event.target.value) }));
  byId("range").addEventListener("change", (event) => {
    if (event.target.value !== CUSTOM) go({ range: event.target.value, from: 0, until: 0 });
    else showCustom(resolve(state(), Date.now()));
  });
  byId("scope").addEventListener("submit", (event) => {
    event.preventDefault();
    applyCustom(go, complain);
  });
  byId("filter-form").addEventListener("submit", (event) => {
    event.preventDefault();
    go({ filter: byId("filter").value.trim() });
  });
  byId("filter").addEventListener("change", (event) => go({ filter: event.target.value.trim() }));
}

export function renderControls(state) {
  byId("tenant").value = state.tenant;
  byId("range").value = state.range;
  byId("every").value = String(state.refresh);
  byId("filter").value = state.filter;
  byId("custom").hidden = state.range !== CUSTOM;
  if (state.range === CUSTOM) showCustom(resolve(state, 0));
}

function fillSelects() {
  const presets = [...PRESETS].map(([value, { name }]) => el("option", { value, textContent: name }));
  byId("range").append(...presets, el("option", { value: CUSTOM, textContent: "Custom" }));
  const pauses = REFRESH_SECONDS.map((seconds) =>
    el("option", { value: String(seconds), textContent: seconds ? `every ${seconds} s` : "by hand" }),
  );
  byId("every").append(...pauses);
}

function tenant() {
  return byId("tenant").value.trim() || DEFAULTS.tenant;
}

// Another tenant has other services.
function subject() {
  return { service: "", type: "", filter: "", zoom: "" };
}

function showCustom({ start, end }) {
  byId("custom").hidden = false;
  byId("from").value = inputTime(start);
  byId("until").value = inputTime(end);
}

function applyCustom(go, complain) {
  if (byId("custom").hidden) return;
  const [from, until] = ["from", "until"].map((id) => new Date(byId(id).value).getTime());
  if (!(from > 0) || !(until > 0)) complain("Give both ends of the time range.");
  else if (until <= from) complain("The time range ends before it begins: swap From and Until.");
  else go({ range: CUSTOM, from, until });
}
