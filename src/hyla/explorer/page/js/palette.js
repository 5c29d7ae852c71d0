// Okabe and Ito's colours, told apart by colour-blind readers; the same as in the package's figures.

export const FEATURES = [
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

export const featureColour = (feature) => FEATURES[feature % FEATURES.length];
export const seriesColour = (i) => SERIES[i % SERIES.length];

/** A colour for each model: that of its attention, unless another model before it has it. */
export function modelColours(models) {
  const taken = new Set();
  const free = SERIES.filter((colour) => !Object.values(ATTENTION).includes(colour));
  return Object.fromEntries(
    models.map(({ id, attention }) => {
      const own = ATTENTION[attention];
      const colour = own && !taken.has(own) ? own : (free.shift() ?? SERIES.at(-1));
      taken.add(colour);
      return [id, colour];
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
