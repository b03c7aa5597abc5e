// A bar per step of time; dragging across the bars selects a sub-range.

import { place, sharpContext, themeColour } from "./dom.js";
import { formatSeconds, formatTime, formatValue } from "./format.js";

const HEIGHT = 118;
const AXIS = 20;
const TOP = 8;
const DRAG_MIN = 5;
const STEPS_S = [15, 30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const TICKS_S = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const BARS_MAX = 150;
const DAY_S = 86_400;
const DAY_MS = DAY_S * 1000;

/** Seconds per bar, by multiples of the 15 s (or 5 or 10) at which agents push: others would flicker. */
export function stepFor({ start, end }) {
  const finest = (end - start) / 1000 / BARS_MAX;
  return STEPS_S.find((step) => step >= finest) ?? Math.ceil(finest / DAY_S) * DAY_S;
}

export class TimelineView {
  #series = null;
  #drag = null;

  constructor({ canvas, tooltip, band, onSelect }) {
    Object.assign(this, { canvas, tooltip, band, onSelect });
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#release(event));
    canvas.addEventListener("pointercancel", () => this.cancel());
    canvas.addEventListener("pointerleave", () => (tooltip.hidden = true));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** {points, range, step (s), unit}, or null for none. */
  show(series) {
    this.#series = series;
    this.cancel();
    this.draw();
  }

  cancel() {
    this.#drag = null;
    this.band.hidden = true;
    this.tooltip.hidden = true;
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    const context = sharpContext(this.canvas, width, HEIGHT);
    if (!this.#series || width === 0) return;
    const peak = Math.max(0, ...this.#series.points.map(({ value }) => value));
    this.#drawGrid(context, width, peak);
    this.#drawBars(context, width, peak);
  }

  #drawGrid(context, width, peak) {
    const { range, unit } = this.#series;
    const floor = HEIGHT - AXIS;
    context.font = `11px ${themeColour("font")}`;
    context.fillStyle = themeColour("line");
    for (const y of [TOP, Math.round((TOP + floor) / 2)]) context.fillRect(0, y, width, 1);
    context.fillRect(0, floor, width, 1);
    context.fillStyle = themeColour("muted");
    context.textBaseline = "alphabetic";
    const [first, last] = [new Date(range.start), new Date(range.end)];
    const day = range.end - range.start > DAY_MS || first.getDate() !== last.getDate();
    const tick = tickFor(range, width / (day ? 130 : 90)) * 1000;
    const zone = first.getTimezoneOffset() * 60_000;
    context.textAlign = "center";
    for (let at = Math.ceil((range.start - zone) / tick) * tick + zone; at < range.end; at += tick) {
      const x = this.#x(at, width);
      if (x > 30 && x < width - 30) {
        context.fillText(formatTime(at, { day, seconds: tick < 60_000 }), x, HEIGHT - 5);
      }
    }
    context.textAlign = "left";
    if (peak > 0) {
      const text = formatValue(peak, unit);
      context.fillStyle = themeColour("surface");
      context.fillRect(0, TOP - 2, context.measureText(text).width + 8, 14);
      context.fillStyle = themeColour("muted");
      context.fillText(text, 2, TOP + 9);
    }
  }

  #drawBars(context, width, peak) {
    const { points, step } = this.#series;
    const floor = HEIGHT - AXIS;
    context.fillStyle = themeColour("bar");
    for (const { time, value } of points) {
      const left = Math.max(0, this.#x(time, width));
      const right = Math.min(width, this.#x(time + step * 1000, width));
      if (value <= 0 || right <= left) continue;
      const height = Math.max(1.5, (value / peak) * (floor - TOP));
      context.beginPath();
      context.roundRect(left + 0.5, floor - height, Math.max(1, right - left - 1), height, [2, 2, 0, 0]);
      context.fill();
    }
  }

  #x(time, width) {
    const { start, end } = this.#series.range;
    return ((time - start) / (end - start)) * width;
  }

  #timeUnder(event) {
    const box = this.canvas.getBoundingClientRect();
    const { start, end } = this.#series.range;
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    return start + part * (end - start);
  }

  #press(event) {
    if (!this.#series || event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.#drag = { x: event.clientX, time: this.#timeUnder(event) };
  }

  #move(event) {
    if (!this.#series) return;
    if (this.#drag) this.#stretch(event);
    this.#describe(event);
    place(this.tooltip, event.clientX, event.clientY);
  }

  #stretch(event) {
    const box = this.canvas.getBoundingClientRect();
    const left = Math.max(box.left, Math.min(this.#drag.x, event.clientX));
    const right = Math.min(box.right, Math.max(this.#drag.x, event.clientX));
    this.band.hidden = false;
    this.band.style.transform = `translateX(${left - box.left}px)`;
    this.band.style.width = `${right - left}px`;
  }

  #describe(event) {
    const { points, step, unit } = this.#series;
    const at = this.#timeUnder(event);
    const point = points.find(({ time }) => at >= time && at < time + step * 1000);
    this.tooltip.hidden = false;
    if (this.#drag) {
      const ends = [Math.min(this.#drag.time, at), Math.max(this.#drag.time, at)];
      this.tooltip.textContent = ends.map((ms) => formatTime(ms, { seconds: true })).join(" – ");
      return;
    }
    const when = formatTime(point?.time ?? at, { day: true, seconds: step < 60 });
    const what = point ? ` · ${formatValue(point.value, unit)} in ${formatSeconds(step)}` : "";
    this.tooltip.textContent = when + what;
  }

  #release(event) {
    const drag = this.#drag;
    this.cancel();
    if (!drag || Math.abs(event.clientX - drag.x) < DRAG_MIN) return;
    const [from, until] = [drag.time, this.#timeUnder(event)].sort((a, b) => a - b);
    this.onSelect(Math.floor(from), Math.ceil(until));
  }
}

function tickFor({ start, end }, most) {
  const finest = (end - start) / 1000 / Math.max(1, most);
  return TICKS_S.find((tick) => tick >= finest) ?? Math.ceil(finest / DAY_S) * DAY_S;
}
