// A flame graph on canvas, root on top: draws only what can be seen, however large the graph.

import { place, sharpContext, themeColour } from "./dom.js";
import { drawFrames, ROW } from "./frames.js";
import { endOf, neighbour, nodeAt } from "./layout.js";

const ZOOM_MS = 180;
const ARROWS = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" };

/**
 * `describe(node)` fills the tooltip; `onZoom(node)` gets what the reader asked for and calls
 * `zoomTo` in turn, so that the address bar and the picture cannot disagree.
 */
export class FlameGraphView {
  #graph = null;
  #found = null;
  #focus = 0;
  #window = [0, 1];
  #cursor = -1;
  #frame = 0;

  constructor({ scroller, canvas, spacer, marker, tooltip, describe, onZoom }) {
    Object.assign(this, { scroller, canvas, spacer, marker, tooltip, describe, onZoom });
    scroller.addEventListener("scroll", () => this.#moved());
    canvas.addEventListener("pointermove", (event) => this.#hover(event));
    canvas.addEventListener("pointerleave", () => this.#point(-1));
    canvas.addEventListener("click", (event) => this.#click(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.#point(-1));
    new ResizeObserver(() => this.draw()).observe(scroller);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** A new graph replaces the old one whole; null empties the canvas. */
  show(graph, { focus = 0, found = null } = {}) {
    cancelAnimationFrame(this.#frame);
    this.#graph = graph;
    this.#found = found;
    this.#focus = focus;
    this.#point(-1);
    if (graph) this.#window = this.#windowOf(focus);
    this.draw();
  }

  highlight(found) {
    this.#found = found;
    this.draw();
  }

  zoomTo(node) {
    if (!this.#graph || node === this.#focus) return;
    this.#focus = node;
    this.#point(-1);
    this.#glide(this.#windowOf(node));
  }

  draw() {
    const graph = this.#graph;
    const width = this.scroller.clientWidth;
    const full = graph ? graph.depth * ROW : 0;
    // The style sheet bounds the scroller's height; the canvas never grows beyond what is in view.
    this.scroller.style.height = `${full}px`;
    const height = Math.min(full, this.scroller.clientHeight);
    this.spacer.style.height = `${full - height}px`;
    const context = sharpContext(this.canvas, width, height);
    if (!graph || width === 0) return;
    drawFrames(context, graph, {
      window: this.#window,
      width,
      height,
      top: this.scroller.scrollTop,
      focus: this.#focus,
      matches: this.#found?.matches ?? null,
      dark: matchMedia("(prefers-color-scheme: dark)").matches,
      ink: themeColour("frame-ink"),
      match: themeColour("match"),
      font: themeColour("font"),
    });
    this.#mark();
  }

  #windowOf(node) {
    return [this.#graph.x[node], endOf(this.#graph, node)];
  }

  #glide(target) {
    cancelAnimationFrame(this.#frame);
    const from = this.#window;
    const started = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const step = (now) => {
      const part = still ? 1 : Math.min(1, Math.max(0, now - started) / ZOOM_MS);
      const eased = 1 - (1 - part) ** 3;
      this.#window = from.map((start, side) => start + (target[side] - start) * eased);
      this.draw();
      if (part < 1) this.#frame = requestAnimationFrame(step);
    };
    step(started);
  }

  #nodeUnder(event) {
    if (!this.#graph) return -1;
    const box = this.canvas.getBoundingClientRect();
    const [start, end] = this.#window;
    const x = start + ((event.clientX - box.left) / box.width) * (end - start);
    const level = Math.floor((event.clientY - box.top + this.scroller.scrollTop) / ROW);
    return nodeAt(this.#graph, level, x);
  }

  #hover(event) {
    const node = this.#nodeUnder(event);
    this.#point(node);
    if (node >= 0) place(this.tooltip, event.clientX, event.clientY);
  }

  #click(event) {
    const node = this.#nodeUnder(event);
    if (node >= 0) this.onZoom(node);
  }

  #key(event) {
    if (!this.#graph || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && this.#cursor >= 0) {
      this.onZoom(this.#cursor);
    } else if (event.key in ARROWS) {
      const [graph, at] = [this.#graph, this.#cursor];
      const next = at < 0 ? this.#focus : neighbour(graph, at, ARROWS[event.key]);
      if (next >= 0) this.#reveal(next);
    } else {
      return;
    }
    event.preventDefault();
  }

  #reveal(node) {
    const top = this.#graph.level[node] * ROW;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + ROW > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW - clientHeight;
    this.#point(node);
    const box = this.marker.getBoundingClientRect();
    place(this.tooltip, box.left, box.bottom);
  }

  #moved() {
    this.#point(-1);
    this.draw();
  }

  #point(node) {
    if (node !== this.#cursor && node >= 0) this.describe(node);
    this.#cursor = node;
    this.tooltip.hidden = node < 0;
    this.canvas.classList.toggle("over", node >= 0);
    this.#mark();
  }

  // The marker is an element over the canvas: moving it costs no redraw of a hundred thousand frames.
  #mark() {
    const [node, graph] = [this.#cursor, this.#graph];
    this.marker.hidden = node < 0 || !graph;
    if (this.marker.hidden) return;
    const [start, end] = this.#window;
    const scale = this.scroller.clientWidth / (end - start);
    const left = (Math.max(graph.x[node], start) - start) * scale;
    const right = (Math.min(endOf(graph, node), end) - start) * scale;
    this.marker.style.transform = `translate(${left}px, ${graph.level[node] * ROW}px)`;
    this.marker.style.width = `${Math.max(2, right - left - 1)}px`;
  }
}
