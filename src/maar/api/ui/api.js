// The server's answers as plain numbers and strings, its refusals as sentences.

const QUERIER = "/querier.v1.QuerierService/";
const NODES_MAX = 100_000;
export const FUNCTIONS_MAX = 5_000;

/** Its message is meant to be read by people. */
export class ApiError extends Error {}

export class Api {
  constructor(tenant) {
    this.tenant = tenant;
  }

  /** Services with their profile types: a Map from name to type ids. */
  async catalog({ start, end }, signal) {
    const labelNames = ["service_name", "__profile_type__"];
    const answer = await this.#ask("Series", { matchers: [], labelNames, start, end }, signal);
    const catalog = new Map();
    for (const { labels = [] } of answer.labelsSet ?? []) {
      const values = new Map(labels.map(({ name, value }) => [name, value]));
      const service = values.get("service_name");
      if (!service) continue;
      const types = catalog.get(service) ?? new Set();
      const type = values.get("__profile_type__");
      if (type) types.add(type);
      catalog.set(service, types);
    }
    return catalog;
  }

  /** The labels that profiles carry as [name, value]; double underscores mark maar's own. */
  async labels({ selector, start, end }) {
    const answer = await this.#ask("Series", { matchers: [selector], labelNames: [], start, end });
    const pairs = (answer.labelsSet ?? [])
      .flatMap(({ labels = [] }) => labels.map(({ name, value }) => [name, value]))
      .filter(([name]) => name !== "service_name" && !name.startsWith("__"));
    return [...new Map(pairs.map((pair) => [pair.join("="), pair])).values()].sort();
  }

  async flameGraph(query, signal) {
    const body = { ...question(query), maxNodes: NODES_MAX };
    const { flamegraph = {} } = await this.#ask("SelectMergeStacktraces", body, signal);
    return {
      names: flamegraph.names ?? [],
      levels: (flamegraph.levels ?? []).map(({ values = [] }) => values),
      total: Number(flamegraph.total ?? 0),
    };
  }

  /** One series over all matching profiles: [{time, value}], times in unix ms, where bars begin. */
  async timeline(query, step, signal) {
    // The API's points mark the last millisecond of what they count, the first one at the start.
    const [last, bars] = [step * 1000 - 1, Math.ceil((query.end - query.start) / 1000 / step)];
    const [start, end] = [query.start + last, query.start + bars * step * 1000 - 1];
    const body = { ...question({ ...query, start, end }), groupBy: [], step };
    const { series = [] } = await this.#ask("SelectSeries", body, signal);
    const sums = new Map();
    for (const { points = [] } of series) {
      for (const { timestamp = 0, value = 0 } of points) {
        const time = Number(timestamp) - last;
        sums.set(time, (sums.get(time) ?? 0) + Number(value));
      }
    }
    return [...sums].map(([time, value]) => ({ time, value })).sort((a, b) => a.time - b.time);
  }

  async top(query, signal) {
    const asked = { ...question(query), limit: FUNCTIONS_MAX };
    const answer = await this.#request(`/api/v1/top?${new URLSearchParams(asked)}`, { signal });
    const rows = (answer.rows ?? []).map(([name, self, total]) => ({
      name,
      self: Number(self),
      total: Number(total),
    }));
    return { total: Number(answer.total ?? 0), rows };
  }

  status(signal) {
    return this.#request("/api/v1/status", { signal });
  }

  #ask(method, body, signal) {
    return this.#request(QUERIER + method, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  }

  async #request(path, options) {
    const headers = { ...options.headers, "X-Scope-OrgID": this.tenant };
    const reply = await reach(path, { ...options, headers });
    const text = await reply.text();
    if (!reply.ok) throw new ApiError(sentence(reply, text));
    try {
      return JSON.parse(text);
    } catch {
      throw new ApiError(`The server answered ${path} with something that is not JSON.`);
    }
  }
}

function question({ type, selector, start, end }) {
  return { profileTypeID: type, labelSelector: selector, start, end };
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // A header that the browser refuses to send is the only TypeError that is not the network's.
    if (/header|ISO-8859/i.test(error.message)) {
      throw new ApiError("This tenant name cannot be sent: use letters, digits and ! - _ . * ' ( ).");
    }
    const where = `maar cannot be reached at ${location.origin}`;
    throw new ApiError(`${where}. Check that \`maar serve\` is running, then refresh.`);
  }
}

function sentence(reply, text) {
  try {
    const { message } = JSON.parse(text);
    if (message) return message;
  } catch {
    // Not every refusal is JSON; a proxy in between answers in its own words.
  }
  return text.trim().slice(0, 500) || `The server answered ${reply.status} ${reply.statusText}.`;
}
