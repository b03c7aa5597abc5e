// What is being looked at, as a value that fits into the address bar and back.

export const PRESETS = new Map([
  ["5m", { ms: 5 * 60e3, name: "Last 5 minutes" }],
  ["15m", { ms: 15 * 60e3, name: "Last 15 minutes" }],
  ["1h", { ms: 60 * 60e3, name: "Last hour" }],
  ["6h", { ms: 6 * 60 * 60e3, name: "Last 6 hours" }],
  ["24h", { ms: 24 * 60 * 60e3, name: "Last 24 hours" }],
]);
export const CUSTOM = "custom";
export const REFRESH_SECONDS = [0, 10, 30, 60];

export const DEFAULTS = Object.freeze({
  tenant: "anonymous",
  service: "",
  type: "",
  range: "1h",
  from: 0,
  until: 0,
  filter: "",
  search: "",
  zoom: "",
  sort: "self",
  refresh: 0,
});

// These change what is shown of an answer, not the question.
const VIEW_ONLY = new Set(["search", "zoom", "sort", "refresh"]);

/** Whatever the address bar holds, the state is one that the page can show. */
export function parse(query) {
  const given = new URLSearchParams(query);
  const state = { ...DEFAULTS };
  for (const key of ["tenant", "service", "type", "filter", "search", "zoom"]) {
    state[key] = given.get(key) ?? DEFAULTS[key];
  }
  state.tenant = state.tenant.trim() || DEFAULTS.tenant;
  if (given.get("sort") === "total") state.sort = "total";
  const refresh = Number(given.get("refresh"));
  if (REFRESH_SECONDS.includes(refresh)) state.refresh = refresh;
  const range = given.get("range");
  const [from, until] = [Number(given.get("from")), Number(given.get("until"))];
  const exact = Number.isSafeInteger(from) && Number.isSafeInteger(until);
  if (PRESETS.has(range)) state.range = range;
  else if (exact && from > 0 && until > from) Object.assign(state, { range: CUSTOM, from, until });
  return state;
}

/** Only what differs from the defaults, so that addresses stay short. */
export function write(state) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (key === "range" && value === CUSTOM) continue;
    if (value !== DEFAULTS[key]) query.set(key, String(value));
  }
  const text = query.toString();
  return text ? `?${text}` : "";
}

export function asksAnew(before, after) {
  return Object.keys(DEFAULTS).some((key) => !VIEW_ONLY.has(key) && before[key] !== after[key]);
}

/** The asked time range in unix milliseconds. */
export function resolve(state, now) {
  if (state.range === CUSTOM) return { start: state.from, end: state.until };
  return { start: now - PRESETS.get(state.range).ms, end: now };
}

export function rangeName(state) {
  if (state.range === CUSTOM) return "the chosen time";
  return `the ${PRESETS.get(state.range).name.toLowerCase()}`;
}

/** The service and the user's own matchers as one selector; the user may write the braces or not. */
export function selector(service, filter) {
  const inner = filter.trim().replace(/^\{/, "").replace(/\}$/, "").trim().replace(/,$/, "");
  const own = `service_name=${quoted(service)}`;
  return inner ? `{${own}, ${inner}}` : `{${own}}`;
}

function quoted(text) {
  return `"${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n")}"`;
}
