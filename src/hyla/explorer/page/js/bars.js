// Small charts of numbers per value or per head, drawn by hand: light, sharp and readable aloud.

import { drawing, percent, signed, svg } from "./dom.js";
import { diverging, presetOf } from "./palette.js";

const GROUP_WIDTH = 26;
const GROUP_GAP = 12;
const HEIGHT = 84;
const AXIS = 24;
const LINE = 19;
const USUAL_VALUES = 8;
const USUAL_HEADS = 16;
const USUAL_RULES = 8;

/** Probabilities of the values 0, 1, … by one or more series, {name, kind, probabilities}, where kind is an
 * attention or "solver"; `marks` are [value, text] pairs that stand under the axis. */
export function probabilityBars(title, series, marks = []) {
  const count = series[0].probabilities.length;
  const step = GROUP_WIDTH + GROUP_GAP;
  // Few values leave room: they are not drawn larger, nor is what is written beside them.
  const places = Math.max(count, USUAL_VALUES);
  const width = GROUP_WIDTH / series.length;
  const bars = series.flatMap(({ name, kind, probabilities }, i) =>
    probabilities.map((probability, value) => {
      const height = Math.max(1, HEIGHT * probability);
      const x = value * step + GROUP_GAP / 2 + i * width;
      const box = { x, y: HEIGHT - height, width: width - 2, height, rx: 2 };
      return svg(
        "rect",
        { class: `bar ${presetOf(kind)}`, ...box },
        svg("title", {}, `${name}: ${percent(probability)} for ${value}`),
      );
    }),
  );
  const digits = Array.from({ length: count }, (_, value) =>
    svg("text", { class: "tick", x: (value + 0.5) * step, y: HEIGHT + 17 }, value),
  );
  const notes = marks.map(([value, text], line) => {
    const y = HEIGHT + AXIS + 14 + line * LINE;
    const x = (value + 0.5) * step;
    // The arrow points at its value; the words go to the side that has room for them.
    const [anchor, beside] = value < places / 2 ? ["start", x + 10] : ["end", x - 10];
    return [
      svg("text", { class: "mark", x, y, "text-anchor": "middle" }, "▲"),
      svg("text", { class: "mark", x: beside, y, "text-anchor": anchor }, text),
    ];
  });
  const best = series.map(({ name, probabilities }) => {
    const top = Math.max(...probabilities);
    return `${name} gives ${percent(top)} to ${probabilities.indexOf(top)}`;
  });
  const words = [...best, ...marks.map(([value, text]) => `${text} is ${value}`)].join("; ");
  return svg(
    "svg",
    {
      class: "bars",
      viewBox: `0 -4 ${places * step} ${HEIGHT + AXIS + 4 + marks.length * LINE}`,
      role: "img",
      "aria-label": `${title}: ${words}`,
    },
    svg("line", { class: "axis", x1: 0, x2: count * step, y1: HEIGHT + 0.5, y2: HEIGHT + 0.5 }),
    bars,
    digits,
    notes,
  );
}

/** A code: one signed bar per head, over a strip of the same numbers as colours. `largest` is the
 * number that fills the height. */
export function codeBars(title, code, largest) {
  const [width, half, strip] = [15, 36, 12];
  const parts = code.map((value, head) => {
    const share = Math.max(-1, Math.min(1, value / largest));
    const height = Math.max(1, Math.abs(share) * half);
    const x = head * width;
    return svg(
      "g",
      {},
      svg("rect", {
        class: value < 0 ? "bar negative" : "bar positive",
        x: x + 2,
        y: value < 0 ? half : half - height,
        width: width - 4,
        height,
        rx: 2,
      }),
      svg("rect", {
        class: "cell",
        x,
        y: 2 * half + 8,
        width,
        height: strip,
        fill: diverging(share),
      }),
      svg("text", { class: "head", x: x + width / 2, y: 2 * half + strip + 21 }, head + 1),
      svg("title", {}, `head ${head + 1}: ${signed(value)}`),
    );
  });
  const numbers = code.map((value) => signed(value, 1)).join(", ");
  return drawing(
    "bars code",
    [Math.max(code.length, USUAL_HEADS) * width, 2 * half + strip + 24],
    `${title}, by head: ${numbers}`,
    svg("line", { class: "axis", x1: 0, x2: code.length * width, y1: half, y2: half }),
    parts,
  );
}

/** A square of numbers between -1 and 1 as colours; `marked` is the name whose lines stand out. */
export function matrix(names, rows, { title, marked = null }) {
  const [cell, margin] = [34, 132];
  const side = names.length * cell;
  const across = Math.max(names.length, USUAL_RULES) * cell;
  const label = (name) => (name === marked ? "matrix-name marked" : "matrix-name");
  return drawing(
    "matrix",
    [margin + across + 44, margin + side + 4],
    title,
    names.map((name, i) => {
      const middle = margin + (i + 0.5) * cell + 4;
      const places = [
        { x: margin - 8, y: middle, "text-anchor": "end" },
        { transform: `translate(${middle} ${margin - 8}) rotate(-60)` },
      ];
      return places.map((place) => svg("text", { class: label(name), ...place }, name));
    }),
    rows.map((row, i) =>
      row.map((value, j) =>
        svg(
          "g",
          {},
          svg("rect", {
            x: margin + j * cell,
            y: margin + i * cell,
            width: cell - 1,
            height: cell - 1,
            fill: diverging(value),
          }),
          svg(
            "text",
            {
              class: Math.abs(value) > 0.5 ? "cell-number light" : "cell-number",
              x: margin + (j + 0.5) * cell,
              y: margin + (i + 0.5) * cell + 4,
            },
            signed(value, 1).replace(/^(−?)0\./, "$1."),
          ),
          svg("title", {}, `${names[i]}, ${names[j]}: ${signed(value)}`),
        ),
      ),
    ),
  );
}
