// Panels as shapes or as numbers, drawn as the package draws them (hyla.tasks.sraven.faces.shapes and
// .rendering): position 1 of a panel is a shape, 2 how many, 3 their shade, 4 where their hands point.

import { svg } from "./dom.js";
import { featureColour, mix } from "./palette.js";

const ATTRIBUTES = ["shape", "number", "shade", "direction"];
const MAX_VALUES = 8;

const SIDE = 122;
const GAP = 14;
const RADIUS = 12;
const SPACING = 36;
const DARKEST = "#12355B";
const HAND = "#D55E00";

const CELL = 34;
const PADDING = 8;
const GUTTER = 56;
const ROW_GAP = 22;

// How many shapes stand in each line, for one shape to eight.
const ARRANGEMENTS = [[1], [2], [3], [2, 2], [3, 2], [3, 3], [2, 3, 2], [3, 2, 3]];

// On the unit circle, y downwards.
const SHAPES = [
  arc(0, 1),
  polygon("0,-1.05 1,0.8 -1,0.8"),
  polygon("-0.85,-0.85 0.85,-0.85 0.85,0.85 -0.85,0.85"),
  polygon("0,-1.15 0.7,0 0,1.15 -0.7,0"),
  star(),
  polygon(
    "-0.35,-1 0.35,-1 0.35,-0.35 1,-0.35 1,0.35 0.35,0.35 " +
      "0.35,1 -0.35,1 -0.35,0.35 -1,0.35 -1,-0.35 -0.35,-0.35",
  ),
  polygon("-0.85,-1 0.85,-1 0.12,0 0.85,1 -0.85,1 -0.12,0"),
  arc(-0.25, 0.25),
];

/** Shapes have four attributes of eight values; what is larger is shown with numbers. */
export const canShowShapes = ({ features, values }) =>
  features <= ATTRIBUTES.length && values <= MAX_VALUES;

/** What a position of a panel is called: "shape", or "position 1" among numbers. */
export const positionName = (position, mode) =>
  mode === "shapes" ? ATTRIBUTES[position] : `position ${position + 1}`;

/** The puzzle: panels row by row, the last of them asked for. Null where no value is known yet.
 * With a correspondence, `correspondence[column][position]` = feature, numbers are coloured by
 * feature, and threads link its places. */
export function grid(panels, { mode, values, correspondence = null }) {
  const size = Math.round(Math.sqrt(panels.length));
  const [width, height] = panelSize(panels[0].length, mode);
  const [gapX, gapY] = mode === "shapes" ? [GAP, GAP] : [GUTTER, ROW_GAP];
  const [stepX, stepY] = [width + gapX, height + gapY];
  const threads =
    mode === "numbers" && correspondence
      ? drawThreads(correspondence, size, stepX, stepY, width)
      : [];
  return svg(
    "svg",
    {
      class: `puzzle ${mode}`,
      viewBox: `-2 -2 ${size * stepX - gapX + 4} ${size * stepY - gapY + 4}`,
    },
    threads,
    panels.map((panel, i) => {
      const [row, column] = [Math.floor(i / size), i % size];
      const last = i === panels.length - 1;
      const name = `Row ${row + 1}, column ${column + 1}${last ? ", the panel asked for" : ""}`;
      return svg(
        "g",
        {
          role: "img",
          "aria-label": `${name}: ${describe(panel, mode)}`,
          transform: `translate(${column * stepX} ${row * stepY})`,
        },
        frame(width, height, last),
        contents(panel, { mode, values, colours: correspondence?.[column] }),
      );
    }),
  );
}

/** The puzzle as it is asked. */
export const question = ({ panels, features, values }, mode) =>
  grid([...panels, Array(features).fill(null)], { mode, values });

/** One panel by itself. */
export function picture(panel, { mode, values, label }) {
  const [width, height] = panelSize(panel.length, mode);
  return svg(
    "svg",
    {
      class: `panel ${mode}`,
      viewBox: `-2 -2 ${width + 4} ${height + 4}`,
      role: "img",
      "aria-label": `${label}: ${describe(panel, mode)}`,
    },
    frame(width, height, false),
    contents(panel, { mode, values }),
  );
}

/** What a value of one position looks like, for the buttons that choose it. */
export function icon(position, value, { mode, values }) {
  const content =
    mode === "shapes" && ATTRIBUTES[position] !== "number"
      ? figure([0, 0], { [ATTRIBUTES[position]]: value }, values)
      : number(mode === "shapes" ? `${value + 1}×` : value, 0, 0, 17);
  return svg("svg", { viewBox: "-20 -20 40 40", "aria-hidden": "true" }, content);
}

function describe(panel, mode) {
  if (panel.every((value) => value === null)) return "not known yet";
  return panel
    .map((value, position) => `${positionName(position, mode)} ${value ?? "open"}`)
    .join(", ");
}

function panelSize(features, mode) {
  return mode === "shapes" ? [SIDE, SIDE] : [CELL + 2 * PADDING, features * CELL + 2 * PADDING];
}

function frame(width, height, isQuery) {
  return svg("rect", { class: isQuery ? "frame query" : "frame", width, height, rx: 7 });
}

function contents(panel, { mode, values, colours = null }) {
  const [width, height] = panelSize(panel.length, mode);
  if (panel.every((value) => value === null)) return number("?", width / 2, height / 2, 34);
  if (mode === "shapes") return figures(panel, values);
  return panel.map((value, position) => {
    const y = PADDING + (position + 0.5) * CELL;
    return [
      colours && chip(width / 2, y, featureColour(colours[position])),
      number(value ?? "·", width / 2, y, 17),
    ];
  });
}

/** The shapes of a panel; attributes that are open are left neutral. */
function figures(panel, values) {
  const known = Object.entries(ATTRIBUTES)
    .map(([position, attribute]) => [attribute, panel[position] ?? null])
    .filter(([, value]) => value !== null);
  const attributes = Object.fromEntries(known);
  const lines = ARRANGEMENTS[attributes.number ?? 0];
  const top = SIDE / 2 - ((lines.length - 1) / 2) * SPACING;
  return lines.flatMap((count, line) => {
    const left = SIDE / 2 - ((count - 1) / 2) * SPACING;
    return Array.from({ length: count }, (_, place) =>
      figure([left + place * SPACING, top + line * SPACING], attributes, values),
    );
  });
}

function figure([x, y], { shape = 0, shade, direction }, values) {
  const darkness = shade === undefined ? 0.35 : shade / (values - 1);
  const points = SHAPES[shape].map(([a, b]) => `${round(x + RADIUS * a)},${round(y + RADIUS * b)}`);
  const outline = svg("polygon", {
    class: "figure",
    points: points.join(" "),
    fill: mix(DARKEST, darkness),
  });
  if (direction === undefined) return outline;
  // A hand, as on a clock, long enough to be seen outside any shape; 0 points up.
  const angle = (2 * Math.PI * direction) / values;
  const end = { x2: x + 1.5 * RADIUS * Math.sin(angle), y2: y - 1.5 * RADIUS * Math.cos(angle) };
  const hand = (stroke, width) =>
    svg("line", { x1: x, y1: y, ...end, stroke, "stroke-width": width, "stroke-linecap": "round" });
  return [outline, hand("#FFFFFF", 5), hand(HAND, 2.6)];
}

function number(text, x, y, size) {
  return svg("text", { class: "number", x, y: y + 0.36 * size, "font-size": size }, String(text));
}

function chip(x, y, colour) {
  const side = CELL - 6;
  return svg("rect", {
    x: x - side / 2,
    y: y - side / 2,
    width: side,
    height: side,
    rx: 6,
    fill: mix(colour, 0.25),
    stroke: colour,
    "stroke-width": 1.5,
  });
}

function drawThreads(correspondence, size, stepX, stepY, width) {
  const threads = [];
  for (let row = 0; row < size; row += 1)
    for (let column = 0; column < size - 1; column += 1)
      correspondence[column].forEach((feature, from) => {
        const to = correspondence[column + 1].indexOf(feature);
        const [x1, x2] = [column * stepX + width, (column + 1) * stepX];
        const [y1, y2] = [from, to].map((place) => row * stepY + PADDING + (place + 0.5) * CELL);
        const middle = (x1 + x2) / 2;
        const d = `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`;
        threads.push(
          svg("path", { class: "thread-edge", d }),
          svg("path", { class: "thread", d, stroke: featureColour(feature) }),
        );
      });
  return threads;
}

/** Points as SVG writes them. */
function polygon(points) {
  return points.split(" ").map((point) => point.split(",").map(Number));
}

/** Points of the unit circle between two shares of a turn, clockwise from the top. */
function arc(start, end) {
  const steps = 40;
  return Array.from({ length: steps }, (_, i) => {
    const angle = 2 * Math.PI * (start + ((end - start) * i) / (steps - 1));
    return [Math.sin(angle), -Math.cos(angle)];
  });
}

function star() {
  return Array.from({ length: 10 }, (_, i) => {
    const [radius, angle] = [i % 2 ? 0.46 : 1.1, (2 * Math.PI * i) / 10];
    return [radius * Math.sin(angle), -radius * Math.cos(angle)];
  });
}

const round = (value) => Math.round(100 * value) / 100;
