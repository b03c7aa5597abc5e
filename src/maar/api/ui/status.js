// The state of the lake in one line: what came in, where it lies, what is still to be merged.

import { el } from "./dom.js";
import { formatBytes, formatCount, formatSeconds } from "./format.js";

const CLUSTERED = 100; // the level of blocks of a whole day, of all shards

export function renderStatus(strip, status) {
  const levels = status.levels ?? [];
  const queued = sum(levels, "queued");
  const running = status.running ?? 0;
  strip.replaceChildren(
    fact("profiles received", formatCount(status.profiles_added ?? 0)),
    levelsFact(levels),
    fact("compactions completed", formatCount(status.completed ?? 0)),
    running ? fact("running", formatCount(running)) : "",
    el("span", { className: "fact" }, "backlog ", el("b", { textContent: backlog(levels, queued) })),
    ...troubles(status, levels),
  );
}

export function renderNoStatus(strip) {
  strip.replaceChildren(fact("status", "not available", "warn"));
}

function fact(name, value, tone = "", title = "") {
  const number = el("b", { textContent: value });
  return el("span", { className: `fact ${tone}`, title }, number, ` ${name}`);
}

function levelsFact(levels) {
  const stored = levels.filter(({ blocks }) => blocks > 0);
  const parts = stored.map(({ level, kind, blocks, bytes, profiles }) => {
    const name = kind === "quarantine" ? kind : level === CLUSTERED ? "clustered" : `L${level}`;
    const inside = `${formatCount(profiles)} profiles, ${formatBytes(bytes)}`;
    const title = `${name}: ${formatCount(blocks)} blocks, ${inside}`;
    const count = el("b", { textContent: formatCount(blocks) });
    return el("span", { className: `level level-${Math.min(level, 3)}`, title }, `${name} `, count);
  });
  const shown = parts.length ? parts : [el("b", { textContent: "none" })];
  return el("span", { className: "fact levels" }, ...shown, " blocks");
}

function backlog(levels, queued) {
  if (!queued) return "none";
  const oldest = Math.max(...levels.map(({ oldest_queued_s: age }) => age ?? 0));
  const age = oldest >= 1 ? `, oldest ${formatSeconds(Math.round(oldest))}` : "";
  return `${formatCount(queued)} blocks${age}`;
}

function troubles(status, levels) {
  const [held, bad] = [sum(levels, "held"), status.profiles_quarantined ?? 0];
  const stuck = status.blocked ?? [];
  const clock = status.retention?.trouble ?? "";
  return [
    held ? fact("blocks held back", formatCount(held), "warn") : "",
    bad ? fact("profiles in quarantine", formatCount(bad), "warn") : "",
    stuck.length ? fact("deletions blocked", formatCount(stuck.length), "warn", stuck[0]) : "",
    clock ? fact("retention's clock", "check", "warn", clock) : "",
  ];
}

function sum(levels, field) {
  return levels.reduce((total, level) => total + (level[field] ?? 0), 0);
}
