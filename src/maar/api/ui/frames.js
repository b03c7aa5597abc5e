// Paints the frames inside a window; its work is bounded by pixels, not by frames.

import { endOf, firstAfter, nameOf } from "./layout.js";
import { frameColour, pathEnd } from "./palette.js";

export const ROW = 21;
const FONT_PX = 11.5;
const SLIVER = 0.75; // narrower frames are painted together, a pixel column at a time
const LABEL_MIN = 26;
const PADDING = 5;
const LABEL_CHARS_MAX = 300; // a name may be 64 KiB of anything

/** Returns how many rectangles it painted. */
export function drawFrames(context, graph, view) {
  const first = Math.floor(view.top / ROW);
  const last = Math.min(graph.depth - 1, Math.floor((view.top + view.height) / ROW));
  context.font = `${FONT_PX}px ${view.font}`;
  context.textBaseline = "middle";
  let painted = 0;
  for (let level = first; level <= last; level++) painted += drawLevel(context, graph, level, view);
  context.globalAlpha = 1;
  return painted;
}

function drawLevel(context, graph, level, view) {
  const [start, end] = view.window;
  const scale = view.width / (end - start);
  const top = level * ROW - view.top;
  const stop = graph.starts[level + 1];
  let painted = 0;
  let node = firstAfter(graph, level, start);
  while (node < stop && graph.x[node] < end) {
    const left = Math.max(0, (graph.x[node] - start) * scale);
    const right = Math.min(view.width, (endOf(graph, node) - start) * scale);
    style(context, graph, node, view);
    painted += 1;
    if (right - left < SLIVER) {
      context.fillRect(left, top, SLIVER, ROW - 1);
      node = Math.max(node + 1, firstAfter(graph, level, start + (left + SLIVER) / scale));
      continue;
    }
    const width = right - left;
    drawFrame(context, left, top, width);
    if (width >= LABEL_MIN) drawLabel(context, nameOf(graph, node), left, top, width, view);
    node += 1;
  }
  return painted;
}

function style(context, graph, node, view) {
  const unmatched = view.matches !== null && view.matches[graph.name[node]] !== 1;
  const above = graph.level[node] < graph.level[view.focus];
  context.globalAlpha = unmatched ? 0.28 : above ? 0.55 : 1;
  const name = nameOf(graph, node);
  context.fillStyle =
    view.matches !== null && !unmatched ? view.match : colour(graph, graph.name[node], name, view.dark);
}

// A graph has far fewer names than frames; each name's colour is worked out once.
function colour(graph, index, name, dark) {
  const theme = dark ? "dark" : "light";
  graph.colours ??= {};
  graph.colours[theme] ??= [];
  return (graph.colours[theme][index] ??= frameColour(name, dark));
}

function drawFrame(context, left, top, width) {
  if (width < 6) {
    context.fillRect(left, top, Math.max(SLIVER, width - 0.5), ROW - 1);
    return;
  }
  context.beginPath();
  context.roundRect(left, top, width - 1, ROW - 1, 2);
  context.fill();
}

function drawLabel(context, name, left, top, width, view) {
  const text = fitted(context, name.slice(0, LABEL_CHARS_MAX), width - 2 * PADDING);
  if (!text) return;
  context.fillStyle = view.ink;
  context.fillText(text, left + PADDING, top + ROW / 2);
}

/** The whole name, else without its path, else cut with an ellipsis. */
function fitted(context, name, width) {
  if (context.measureText(name).width <= width) return name;
  const short = name.slice(pathEnd(name)) || name;
  const whole = context.measureText(short).width;
  if (whole <= width) return short;
  let keep = Math.floor((short.length * width) / whole);
  while (keep > 1 && context.measureText(`${short.slice(0, keep)}…`).width > width) keep -= 1;
  return keep > 1 ? `${short.slice(0, keep)}…` : "";
}
