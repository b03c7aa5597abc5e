// Label matchers to choose from, looked up when the reader turns to the filter.

import { el } from "./dom.js";

const SUGGESTIONS_MAX = 200;

/** `lookUp()` gives the label pairs of the chosen service; a failed look-up suggests nothing. */
export class Suggestions {
  #pairs = [];

  constructor({ input, list, lookUp }) {
    Object.assign(this, { input, list });
    input.addEventListener("focus", async () => {
      this.#pairs = await lookUp().catch(() => []);
      this.#render();
    });
    input.addEventListener("input", () => this.#render());
  }

  #render() {
    const texts = suggestions(this.input.value, this.#pairs);
    this.list.replaceChildren(...texts.map((value) => el("option", { value })));
  }
}

/** What is already written stays; each suggestion continues it by one matcher. */
export function suggestions(written, pairs) {
  const kept = /^(?:.*"\s*,\s*)?/.exec(written)[0];
  return pairs
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .filter((matcher) => !kept.includes(matcher))
    .slice(0, SUGGESTIONS_MAX)
    .map((matcher) => kept + matcher);
}
