// A flame graph as flat arrays, ordered so that any frame is found by binary search.

/**
 * Frames lie level by level, each level sorted by x. Offsets arrive delta-encoded: the distance
 * from the end of the frame before. Integers may arrive as strings, as protobuf's JSON has it.
 */
export function decode({ names, levels, total }) {
  const starts = new Int32Array(levels.length + 1);
  levels.forEach((values, level) => {
    starts[level + 1] = starts[level] + Math.floor(values.length / 4);
  });
  const count = starts[levels.length];
  const graph = {
    names: names.map((name) => name || "(unnamed)"),
    total,
    count,
    depth: levels.length,
    starts,
    x: new Float64Array(count),
    width: new Float64Array(count),
    self: new Float64Array(count),
    name: new Int32Array(count),
    level: new Int32Array(count),
    parent: new Int32Array(count).fill(-1),
    key: new Uint32Array(count),
  };
  levels.forEach((values, level) => fillLevel(graph, level, values));
  for (let level = 1; level < graph.depth; level++) adopt(graph, level);
  nameKeys(graph);
  return graph;
}

function fillLevel(graph, level, values) {
  let end = 0;
  for (let node = graph.starts[level], at = 0; node < graph.starts[level + 1]; node++, at += 4) {
    graph.x[node] = end + Number(values[at]);
    graph.width[node] = Number(values[at + 1]);
    graph.self[node] = Number(values[at + 2]);
    graph.name[node] = Number(values[at + 3]);
    graph.level[node] = level;
    end = graph.x[node] + graph.width[node];
  }
}

function adopt(graph, level) {
  let above = graph.starts[level - 1];
  const last = graph.starts[level] - 1;
  for (let node = graph.starts[level]; node < graph.starts[level + 1]; node++) {
    while (above < last && endOf(graph, above) <= graph.x[node]) above++;
    graph.parent[node] = above;
  }
}

/** A frame's key hashes its path of names: the same frame is found again in the next answer. */
function nameKeys(graph) {
  const hashes = graph.names.map((name) => hash(name));
  for (let node = 0; node < graph.count; node++) {
    const parent = graph.parent[node];
    const above = parent < 0 ? 0x811c9dc5 : graph.key[parent];
    graph.key[node] = Math.imul(above ^ (hashes[graph.name[node]] ?? 0), 0x9e3779b1) ^ (above >>> 15);
  }
}

/** FNV-1a over UTF-16 units. */
export function hash(text) {
  let value = 0x811c9dc5;
  for (let at = 0; at < text.length; at++) {
    value = Math.imul(value ^ text.charCodeAt(at), 0x01000193);
  }
  return value >>> 0;
}

export function endOf(graph, node) {
  return graph.x[node] + graph.width[node];
}

export function nameOf(graph, node) {
  return graph.names[graph.name[node]] ?? "(unnamed)";
}

/** The first frame of a level that ends after x; the level's end if there is none. */
export function firstAfter(graph, level, x) {
  let low = graph.starts[level];
  let high = graph.starts[level + 1];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (endOf(graph, middle) > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The frame at a point, or -1. */
export function nodeAt(graph, level, x) {
  if (level < 0 || level >= graph.depth) return -1;
  const node = firstAfter(graph, level, x);
  return node < graph.starts[level + 1] && graph.x[node] <= x ? node : -1;
}

export function findKey(graph, key) {
  return key === "" ? -1 : graph.key.indexOf(parseInt(key, 16));
}

export function keyText(graph, node) {
  return graph.key[node].toString(16);
}

/** From the root to the frame itself. */
export function pathTo(graph, node) {
  const path = [];
  for (let at = node; at >= 0; at = graph.parent[at]) path.unshift(at);
  return path;
}

/** What a keyboard reaches from a frame: its parent, widest child, neighbours in the same level. */
export function neighbour(graph, node, direction) {
  const level = graph.level[node];
  if (direction === "up") return graph.parent[node];
  if (direction === "left") return node > graph.starts[level] ? node - 1 : -1;
  if (direction === "right") return node + 1 < graph.starts[level + 1] ? node + 1 : -1;
  if (level + 1 >= graph.depth) return -1;
  let widest = -1;
  for (let child = firstAfter(graph, level + 1, graph.x[node]); ; child++) {
    if (child >= graph.starts[level + 2] || graph.parent[child] !== node) return widest;
    if (widest < 0 || graph.width[child] > graph.width[widest]) widest = child;
  }
}

/**
 * Which names match, and how much of the graph lies under matching frames. A frame inside a
 * matching frame is already counted. In double quotes the whole name must be equal.
 */
export function search(graph, term) {
  const wanted = term.trim();
  if (!wanted) return null;
  const exact = /^".+"$/s.test(wanted);
  const text = exact ? wanted.slice(1, -1) : wanted.toLowerCase();
  const matches = Uint8Array.from(graph.names, (name) =>
    Number(exact ? name === text : name.toLowerCase().includes(text)),
  );
  const covered = new Uint8Array(graph.count);
  let value = 0;
  let frames = 0;
  for (let node = 0; node < graph.count; node++) {
    const parent = graph.parent[node];
    const inside = parent >= 0 && covered[parent] === 1;
    const match = matches[graph.name[node]] === 1;
    if (match) frames += 1;
    if (match && !inside) value += graph.width[node];
    covered[node] = inside || match ? 1 : 0;
  }
  return { matches, value, frames };
}
