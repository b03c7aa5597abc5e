// Colours of frames: one family per package, a shade per function; warm stone around a cold lake.

import { hash } from "./layout.js";

// Hue and saturation. Warm families outnumber the lake's, so that the graph reads as one surface.
const FAMILIES = [
  [22, 74],
  [34, 80],
  [12, 62],
  [44, 76],
  [188, 36],
  [28, 58],
  [352, 48],
  [160, 30],
  [40, 56],
  [204, 40],
  [18, 48],
  [50, 60],
];
// A slash in brackets belongs to an argument, not to the path: pkg.F[example.com/x.T].
const ARGUMENTS = /[[(\s]|$/;
const QUIET = new Set(["total", "other", "(unnamed)"]);

/** What a function belongs to, guessed from the shape of its name; the name itself if it has none. */
export function packageOf(name) {
  const file = /^(\S+\.(?:py|rb|js|ts|php)):?\s/.exec(name);
  if (file) return file[1].replace(/\/[^/]*$/, "");
  const scope = name.split("::");
  if (scope.length > 1) return scope[0].replace(/^.*[\s<&*]/, "");
  const slash = name.lastIndexOf("/", name.search(ARGUMENTS));
  const dot = name.indexOf(".", slash + 1);
  if (slash >= 0) return dot < 0 ? name.slice(0, slash) : name.slice(0, dot);
  const parts = name.split(/[[(\s]/, 1)[0].split(".");
  if (parts.length > 2) return parts.slice(0, -2).join(".");
  return parts[0] || name;
}

/** Where the path in front of a name ends: people look for what comes after it. */
export function pathEnd(name) {
  return name.lastIndexOf("/", name.search(ARGUMENTS)) + 1;
}

export function frameColour(name, dark) {
  if (QUIET.has(name)) return dark ? "hsl(195 10% 48%)" : "hsl(190 12% 84%)";
  const [hue, saturation] = FAMILIES[spread(packageOf(name)) % FAMILIES.length];
  const shade = spread(name) % 9;
  const lightness = dark ? 53 + shade : 70 + shade;
  return `hsl(${hue} ${saturation - (dark ? 12 : 0)}% ${lightness}%)`;
}

// FNV's low bits are weak on short names: multiply, and take the high ones.
function spread(text) {
  return Math.imul(hash(text), 0x9e3779b1) >>> 16;
}
