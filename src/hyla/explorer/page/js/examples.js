// The examples that a model sees of a function: as shades, and as numbers on request.

import { details, h, scrolled, svg } from "./dom.js";
import { sequential } from "./palette.js";
import { variableName } from "./terms.js";

/** `context` is a list of {x, y}. */
export function examplesShown(context) {
  const names = [...context[0].x.map((_, i) => variableName(i)), "value"];
  const examples = context.map(({ x, y }) => [...x, y]);
  return [
    scrolled("Examples as shades", shades(names, examples)),
    details(
      `The ${context.length} examples as numbers`,
      scrolled("Examples as numbers", table(names, examples)),
    ),
  ];
}

function table(names, examples) {
  const header = names.map((name) => h("th", { scope: "col" }, name));
  const rows = examples.map((example) => example.map((value) => h("td", {}, value.toFixed(2))));
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, header)),
    h(
      "tbody",
      {},
      rows.map((row) => h("tr", {}, row)),
    ),
  );
}

/** A column for each example; the function's value stands apart below. */
function shades(names, examples) {
  const [width, height, margin, space] = [Math.min(34, 960 / examples.length), 26, 52, 10];
  const last = names.length - 1;
  const top = (r) => r * height + (r === last ? space : 0);
  const right = margin + examples.length * width;
  return svg(
    "svg",
    {
      class: "strip",
      width: right,
      viewBox: `0 0 ${right} ${names.length * height + space}`,
      role: "img",
      "aria-label": `${examples.length} examples: dark is 1, pale is 0`,
    },
    names.map((name, r) =>
      svg(
        "text",
        { class: "matrix-name", x: margin - 8, y: top(r) + 17, "text-anchor": "end" },
        name,
      ),
    ),
    examples.map((example, c) =>
      example.map((value, r) => {
        const box = { x: margin + c * width, y: top(r), width: width - 1, height: height - 1 };
        return svg(
          "rect",
          { ...box, fill: sequential(value) },
          svg("title", {}, `example ${c + 1}, ${names[r]}: ${value.toFixed(2)}`),
        );
      }),
    ),
  );
}
