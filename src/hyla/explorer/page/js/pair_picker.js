// Which query attends to which key: a grid with one button per token of the puzzle.

import { h, uniqueId } from "./dom.js";

/** `onPick({query, key})` gets token positions. Tokens are the panels' values, panel by panel. */
export function pairPicker(instance, { query, key }, onPick) {
  const { panels, features, grid } = instance;
  const total = (panels.length + 1) * features;
  const firstQuery = total - features;
  const row = (name, first, count, chosen, pick, shown) => {
    const group = uniqueId(name);
    return Array.from({ length: count }, (_, i) => {
      const token = first + i;
      const [panel, place] = [Math.floor(token / features), token % features];
      return h(
        "label",
        {},
        h("input", {
          type: "radio",
          name: group,
          value: token,
          checked: token === chosen,
          "aria-label": `${name}: ${tokenName(token, instance)}`,
          change: () => pick(token),
        }),
        h("span", {}, shown(panel, place)),
      );
    });
  };
  const value = (panel, place) => (panel < panels.length ? String(panels[panel][place]) : "?");
  const keys = row("key", 0, total, key, (token) => onPick({ query, key: token }), value);
  const pickQuery = (token) => onPick({ query: token, key });
  const queries = row("query", firstQuery, features, query, pickQuery, (_, place) =>
    String(place + 1),
  );
  const cells = Array.from({ length: panels.length + 1 }, (_, panel) =>
    h("div", { class: "tokens" }, keys.slice(panel * features, (panel + 1) * features)),
  );
  const tokens = h("div", { class: "token-grid" }, cells);
  tokens.style.gridTemplateColumns = `repeat(${grid}, max-content)`;
  return h(
    "div",
    { class: "pair-picker" },
    h(
      "fieldset",
      {},
      h("legend", { class: "label" }, "Query: a position of the panel asked for"),
      h("div", { class: "tokens" }, queries),
    ),
    h("fieldset", {}, h("legend", { class: "label" }, "Key: any token of the puzzle"), tokens),
  );
}

/** A token in words: "row 3, column 1, position 4". */
export function tokenName(token, { features, grid }) {
  const panel = Math.floor(token / features);
  const [row, column] = [Math.floor(panel / grid), panel % grid];
  return `row ${row + 1}, column ${column + 1}, position ${(token % features) + 1}`;
}
