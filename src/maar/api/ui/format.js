// Numbers, times and profile types as people read them.

const NAMES = new Map([
  ["process_cpu:cpu", "CPU"],
  ["process_cpu:samples", "CPU samples"],
  ["wall:wall", "Wall time"],
  ["memory:inuse_space", "Memory in use"],
  ["memory:inuse_objects", "Objects in use"],
  ["memory:alloc_space", "Memory allocated"],
  ["memory:alloc_objects", "Objects allocated"],
  ["goroutine:goroutine", "Goroutines"],
  ["goroutines:goroutine", "Goroutines"],
  ["mutex:contentions", "Mutex contentions"],
  ["mutex:delay", "Mutex delay"],
  ["block:contentions", "Block contentions"],
  ["block:delay", "Block delay"],
]);

const NANOSECONDS_PER = new Map([
  ["nanoseconds", 1],
  ["microseconds", 1e3],
  ["milliseconds", 1e6],
  ["seconds", 1e9],
]);

const TIME_STEPS = [
  [1e3, 1, "ns"],
  [1e6, 1e3, "µs"],
  [1e9, 1e6, "ms"],
  [120e9, 1e9, "s"],
  [7200e9, 60e9, "min"],
  [172800e9, 3600e9, "h"],
  [Infinity, 86400e9, "days"],
];
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const COUNT_UNITS = ["", " k", " M", " G", " T"];

/** The unit of a profile type id: name:sample_type:sample_unit:period_type:period_unit. */
export function unitOf(type) {
  const unit = type.split(":")[2] ?? "";
  if (NANOSECONDS_PER.has(unit)) return { kind: "time", scale: NANOSECONDS_PER.get(unit) };
  return { kind: unit === "bytes" ? "bytes" : "count", scale: 1 };
}

export function typeName(type) {
  const [name = "", sample = ""] = type.split(":");
  return NAMES.get(`${name}:${sample}`) ?? `${name} ${sample.replaceAll("_", " ")}`.trim();
}

/** Known types first, in the order in which people look at them; then the others by name. */
export function byInterest(left, right) {
  return rank(left) - rank(right) || left.localeCompare(right);
}

function rank(type) {
  const place = [...NAMES.keys()].indexOf(type.split(":").slice(0, 2).join(":"));
  return place < 0 ? NAMES.size : place;
}

export function formatValue(value, unit) {
  const scaled = value * unit.scale;
  if (unit.kind === "time") return formatNanoseconds(scaled);
  if (unit.kind === "bytes") return stepped(scaled, 1024, BYTE_UNITS.map((name) => ` ${name}`));
  return formatCount(scaled);
}

export function formatCount(value) {
  if (Math.abs(value) < 10_000) return trimmed(value, 0).replace(/\B(?=(\d{3})+$)/g, ",");
  return stepped(value, 1000, COUNT_UNITS);
}

export function formatBytes(value) {
  return formatValue(value, { kind: "bytes", scale: 1 });
}

export function formatSeconds(seconds) {
  return formatNanoseconds(seconds * 1e9);
}

function formatNanoseconds(value) {
  if (value === 0) return "0 s";
  const [, size, name] = TIME_STEPS.find(([limit]) => Math.abs(value) < limit);
  return `${significant(value / size)} ${name}`;
}

function stepped(value, base, units) {
  let place = 0;
  let rest = value;
  while (Math.abs(rest) >= base && place < units.length - 1) {
    rest /= base;
    place += 1;
  }
  return `${significant(rest)}${units[place]}`;
}

export function formatPercent(part, whole) {
  if (!(whole > 0)) return "0%";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.01) return "<0.01%";
  return `${trimmed(percent, percent < 10 ? 2 : 1)}%`;
}

function significant(value) {
  const size = Math.abs(value);
  return trimmed(value, size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

function trimmed(value, digits) {
  const text = value.toFixed(digits);
  return digits === 0 ? text : text.replace(/\.?0+$/, "");
}

const two = (number) => String(number).padStart(2, "0");

/** Local time; the day is shown only where a range spans more than one. */
export function formatTime(ms, { day = false, seconds = false } = {}) {
  const at = new Date(ms);
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}`;
  const full = seconds ? `${clock}:${two(at.getSeconds())}` : clock;
  return day ? `${two(at.getDate())} ${MONTHS[at.getMonth()]} ${full}` : full;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** The value of an <input type="datetime-local">, in the reader's own time zone. */
export function inputTime(ms) {
  const at = new Date(ms);
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date}T${formatTime(ms, { seconds: true })}`;
}
