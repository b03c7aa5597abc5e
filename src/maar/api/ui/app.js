// Wires the page: one state, one address, one question at a time.

import { Api, FUNCTIONS_MAX } from "./api.js";
import { bindControls, renderControls } from "./controls.js";
import { byId, el } from "./dom.js";
import { renderNoProfiles, renderNoServices } from "./empty.js";
import { FlamePanel } from "./flamepanel.js";
import { byInterest, formatSeconds, formatValue, unitOf } from "./format.js";
import { ServiceList, renderTypes } from "./services.js";
import { CUSTOM, asksAnew, parse, rangeName, resolve, selector, write } from "./state.js";
import { renderNoStatus, renderStatus } from "./status.js";
import { Suggestions } from "./suggest.js";
import { TimelineView, stepFor } from "./timeline.js";
import { TopView } from "./top.js";

const STATUS_MS = 15_000;

let state = parse(location.search);
let asking = new AbortController();
let refreshTimer = 0;
let shownTenant = state.tenant;
let received = null; // profiles that all tenants ever pushed, once the status has told

const flame = new FlamePanel({
  onZoom: (zoom) => go({ zoom }),
  onSearch: (search) => go({ search }, { replace: true }),
});
const timeline = new TimelineView({
  canvas: byId("timeline"),
  tooltip: byId("time-tip"),
  band: byId("band"),
  onSelect: (from, until) => go({ range: CUSTOM, from, until }),
});
const top = new TopView({
  table: byId("top"),
  more: byId("more"),
  note: byId("top-note"),
  onPick: (name) => go({ search: state.search === `"${name}"` ? "" : `"${name}"` }),
  onSort: (sort) => go({ sort }, { replace: true }),
});
const services = new ServiceList({
  list: byId("services"),
  count: byId("service-count"),
  filter: byId("service-filter"),
  onChoose: (service) => go({ service, zoom: "" }),
});

new Suggestions({
  input: byId("filter"),
  list: byId("labels"),
  lookUp: () =>
    new Api(state.tenant).labels({
      selector: selector(state.service, ""),
      ...resolve(state, Date.now()),
    }),
});

/** Every change of what is shown goes through here, so the address always tells the truth. */
function go(patch, { replace = false } = {}) {
  const before = state;
  state = { ...state, ...patch };
  const address = location.pathname + write(state);
  if (replace) history.replaceState(null, "", address);
  else if (write(before) !== write(state)) history.pushState(null, "", address);
  follow(before);
}

function follow(before) {
  renderControls(state);
  top.sortBy(state.sort);
  showSearch();
  schedule();
  if (asksAnew(before, state)) load();
  else flame.zoom(state.zoom);
}

function showSearch() {
  flame.search(state.search);
  top.pick(/^".+"$/s.test(state.search) ? state.search.slice(1, -1) : "");
}

/** The old picture stays, dimmed, until the new one is there; only what failed anew is cleared. */
async function load({ fresh = true } = {}) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  const api = new Api(state.tenant);
  document.body.classList.add("busy");
  document.body.classList.toggle("anew", fresh);
  complain("");
  try {
    const range = resolve(state, Date.now());
    if (state.tenant !== shownTenant) forget();
    const [catalog] = await Promise.all([api.catalog(range, signal), loadStatus()]);
    if (!signal.aborted && choose(catalog)) await ask(api, range, { fresh, signal });
  } catch (error) {
    if (!signal.aborted) complain(error.message);
  } finally {
    if (!signal.aborted) document.body.classList.remove("busy", "anew");
  }
}

/** Nothing of one tenant may stand under the name of another, not even while a question fails. */
function forget() {
  shownTenant = state.tenant;
  services.show([], "");
  for (const view of [timeline, flame, top]) view.show(null);
  byId("view").hidden = true;
  byId("empty").hidden = true;
  document.title = "maar";
}

/** Settles service and type by what there is; false when there is nothing to ask for. */
function choose(catalog) {
  const names = [...catalog.keys()].sort((a, b) => a.localeCompare(b));
  const service = state.service || names[0] || "";
  const types = [...(catalog.get(service) ?? [])].sort(byInterest);
  services.show(names, service);
  showEmpty(names, service, types);
  if (!types.length) return false;
  const type = types.includes(state.type) ? state.type : types[0];
  const settled = { ...state, service, type };
  if (write(settled) !== write(state)) {
    state = settled;
    history.replaceState(null, "", location.pathname + write(state));
  }
  document.title = `${service} · maar`;
  byId("service-name").textContent = service;
  renderTypes(byId("types"), types, type, (chosen) => go({ type: chosen, zoom: "" }));
  return true;
}

function showEmpty(names, service, types) {
  const section = byId("empty");
  section.hidden = types.length > 0;
  byId("view").hidden = types.length === 0;
  const range = rangeName(state);
  if (names.length === 0) renderNoServices(section, { tenant: state.tenant, range, received });
  else if (types.length === 0) renderNoProfiles(section, { service, range });
}

async function ask(api, range, { fresh, signal }) {
  const { type } = state;
  const unit = unitOf(type);
  const query = { type, selector: selector(state.service, state.filter), ...range };
  const step = stepFor(range);
  const show = async (answer, paint) => {
    try {
      const value = await answer;
      if (!signal.aborted) paint(value);
    } catch (error) {
      if (fresh && !signal.aborted) paint(null);
      throw error;
    }
  };
  const answers = await Promise.allSettled([
    show(api.timeline(query, step, signal), (points) =>
      timeline.show(points && { points, range, step, unit }),
    ),
    show(api.flameGraph(query, signal), (graph) => {
      flame.show(graph, { unit, zoom: state.zoom, search: state.search });
      showTotal(graph?.total, unit, step);
    }),
    show(api.top(query, signal), (found) =>
      top.show(found && { ...found, unit, cut: found.rows.length >= FUNCTIONS_MAX }),
    ),
  ]);
  const failed = answers.find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
}

/** Of the range itself: the last bar may reach beyond it. */
function showTotal(total, unit, step) {
  byId("timeline-total").textContent =
    total === undefined
      ? ""
      : `${formatValue(total, unit)} in ${rangeName(state)}, ${formatSeconds(step)} a bar`;
}

async function loadStatus() {
  try {
    const status = await new Api(state.tenant).status();
    received = Number(status.profiles_added ?? 0);
    renderStatus(byId("status"), status);
  } catch {
    renderNoStatus(byId("status")); // the strip says so itself; profiles may still be readable
  }
}

function complain(sentence) {
  const banner = byId("banner");
  if (!sentence) {
    banner.replaceChildren();
    return;
  }
  const retry = el("button", { type: "button", textContent: "Try again" });
  retry.addEventListener("click", () => load());
  banner.replaceChildren(el("p", { textContent: sentence }), retry);
}

function schedule() {
  clearInterval(refreshTimer);
  if (!state.refresh) return;
  refreshTimer = setInterval(() => {
    if (!document.hidden) load({ fresh: false });
  }, state.refresh * 1000);
}

addEventListener("popstate", () => {
  const before = state;
  state = parse(location.search);
  follow(before);
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    byId("search").select();
    byId("search").focus();
  } else if (event.key === "Escape") {
    timeline.cancel();
    if (typing) event.target.blur();
    if (state.search || state.zoom) go({ search: "", zoom: "" });
  }
});
setInterval(() => {
  if (!document.hidden) loadStatus();
}, STATUS_MS);

bindControls({ state: () => state, go, refresh: () => load({ fresh: false }), complain });
renderControls(state);
top.sortBy(state.sort);
showSearch();
schedule();
load();
