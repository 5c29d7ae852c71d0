// Okabe and Ito's colours, told apart by colour-blind readers; the same as in the package's figures.

const FEATURES = [
  "#0072B2",
  "#D55E00",
  "#009E73",
  "#CC79A7",
  "#E69F00",
  "#56B4E9",
  "#6B7280",
];

const ATTENTION = { hyla: "#D55E00", softmax: "#0072B2", linear: "#009E73" };
const SERIES = [
  "#D55E00",
  "#0072B2",
  "#009E73",
  "#CC79A7",
  "#E69F00",
  "#56B4E9",
  "#8A6D00",
  "#7B8794",
];

// Neither so pale nor so dark that they vanish on a light or dark page.
const SHADES = [
  [1, "#FFFFFF"],
  [0.55, "#FFFFFF"],
  [0.65, "#000000"],
  [0.78, "#FFFFFF"],
  [0.82, "#000000"],
];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

export const featureColour = (feature) => FEATURES[feature % FEATURES.length];
export const seriesColour = (i) => SERIES[i % SERIES.length];

/** An attention without what differs from its preset: that of hyla.expected2 is hyla. */
export const presetOf = (attention) => attention.split(".")[0];

/** {colour, dash} for each model or run, by id: the colour of its attention's preset, the same
 * wherever it is shown, and for the second and later of one preset a shade of it and another dash. */
export function lineStyles(models) {
  const counts = {};
  return Object.fromEntries(
    models.map(({ id, attention }) => {
      const preset = presetOf(attention);
      const before = counts[preset] ?? 0;
      counts[preset] = before + 1;
      const [share, other] = SHADES[before % SHADES.length];
      const colour = mix(ATTENTION[preset] ?? SERIES.at(-1), share, other);
      return [id, { colour, dash: DASHES[before % DASHES.length] }];
    }),
  );
}

/** Between orange (-1), white (0) and blue (+1). */
export function diverging(share) {
  const bounded = Math.max(-1, Math.min(1, share));
  return mix(bounded < 0 ? "#D55E00" : "#0072B2", Math.abs(bounded));
}

/** Between pale yellow (0) and dark blue (1). */
export const sequential = (share) => mix("#12355B", share, "#FFF3C4");

/** A colour between two, with `share` of the first. */
export function mix(first, share, second = "#FFFFFF") {
  const [a, b] = [channels(first), channels(second)];
  const parts = a.map((value, i) => Math.round(share * value + (1 - share) * b[i]));
  return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

function channels(colour) {
  return [1, 3, 5].map((i) => Number.parseInt(colour.slice(i, i + 2), 16));
}
