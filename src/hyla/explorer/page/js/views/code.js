// The code of a puzzle, layer by layer, and where it lies among the codes of others.

import { get, serial } from "../api.js";
import { codeBars, matrix } from "../bars.js";
import { chart, draw, markers } from "../charts.js";
import { busily, caption, choice, failure, h, signed, waiting } from "../dom.js";
import { heading, smallBoard, withoutModel } from "../heading.js";
import { pairPicker, tokenName } from "../pair_picker.js";
import { seriesColour } from "../palette.js";
import { modelOf, modelsOf } from "../models.js";
import { question } from "../panels.js";
import { completePuzzle, picker, puzzleOf } from "../picker.js";
import { list, ruleLabel } from "../words.js";

export const title = "Code";

const NEAREST = 3;
const [ROW, ONE] = ["row", "one"];

export function mount(root, app) {
  if (!modelsOf(app.about, "sraven").length) return withoutModel(root, title, "SRAVEN");

  let instance = null;
  const controls = picker(app);
  const board = h("div", { class: "board small" });
  const pairs = h("div", { class: "pairs" });
  const layers = h("section", { class: "layers", "aria-label": "Codes by layer" });
  const layerChoice = h("div");
  const map = h("section", { class: "map", "aria-label": "Map of codes" });
  const conclusion = h("p", { class: "notice", "aria-live": "polite" });
  root.append(
    heading(
      "The code of this puzzle",
      "When a token of the missing panel attends to another token, each head gives one score. The scores ",
      "of all heads are the code of that pair: blue above zero, orange below. The paper finds that ",
      "puzzles with the same rule have similar codes.",
    ),
    controls.element,
    h("div", { class: "puzzle-and-pairs" }, smallBoard(board, controls.modes), pairs),
    h("h2", {}, "Code by layer"),
    layers,
    h("h2", {}, "Among other puzzles"),
    layerChoice,
    map,
    conclusion,
  );

  const load = serial(async (state) => {
    const puzzle = puzzleOf(state, app.about);
    try {
      const found = await controls.load(state);
      if (found === null) return;
      instance = found;
    } catch (error) {
      board.replaceChildren(failure(error));
      for (const part of [pairs, layers, map, conclusion]) part.replaceChildren();
      return;
    }
    board.replaceChildren(question(instance, puzzle.mode));
    showPairs(state);
    const asked = { model: puzzle.model, id: instance.id, ...pairOf(state) };
    const codes = get("sraven/code", asked);
    await Promise.all([
      busily(layers, () => showLayers(codes)),
      busily(map, () => showMap(codes, asked, layerOf(state, puzzle.model))),
    ]);
  });

  function showPairs(state) {
    const pair = pairOf(state);
    const focused = pairs.querySelector(":focus")?.getAttribute("aria-label");
    const which = choice(
      "Which pair of tokens",
      { [ROW]: "Last position to its row", [ONE]: "A pair of your choice" },
      (chosen) => app.set(chosen === ROW ? { query: null, key: null } : firstPair()),
    );
    which.choose(pair ? ONE : ROW);
    pairs.replaceChildren(
      which.element,
      pair
        ? pairPicker(instance, pair, ({ query, key }) => app.set({ query, key }, { step: false }))
        : h(
            "p",
            { class: "hint" },
            "As in the paper’s analysis: the last position of the missing panel attends to the same ",
            "position of the two panels before it in its row.",
          ),
    );
    // Drawn anew under the keyboard's focus: give it back.
    if (focused) pairs.querySelector(`[aria-label="${focused}"]`)?.focus();
  }

  function firstPair() {
    const { panels, features } = instance;
    const query = (panels.length + 1) * features - 1;
    return { query, key: query - features };
  }

  async function showLayers(codes) {
    const { layers: found, pairs: shown, rule } = await codes;
    const largest = Math.max(...found.flatMap(({ codes }) => codes.flat().map(Math.abs)));
    layers.replaceChildren(...found.map((layer) => layerCard(layer, shown, rule, largest)));
    conclude(found, rule);
  }

  /** What the code says of the rule, and what that does not show. */
  function conclude(found, rule) {
    const own = found.filter(({ nearest }) => nearest[0]?.rule === rule).map(({ layer }) => layer + 1);
    const where = own.length
      ? `in ${own.length > 1 ? "layers" : "layer"} ${list(own)} of ${found.length}`
      : `in none of ${found.length} layers`;
    conclusion.replaceChildren(
      `To conclude: the code of this puzzle is nearest to that of its own rule, ${ruleLabel(rule)}, ${where}. `,
      "So far the code only resembles the rule; whether the model computes by it shows when it is given another: ",
      h("a", { href: app.address("swap") }, "swap the code"),
      ".",
    );
  }

  function layerCard({ layer, codes, nearest }, shown, rule, largest) {
    return h(
      "article",
      { class: "card" },
      h("h3", {}, `Layer ${layer + 1}`),
      h(
        "div",
        { class: "codes" },
        codes.map((code, i) => {
          const name = `key ${tokenName(shown[i][1], instance)}`;
          const bars = codeBars(`${name}, layer ${layer + 1}`, code, largest);
          return h("figure", {}, h("figcaption", {}, name), bars);
        }),
      ),
      h("p", { class: "label" }, "Nearest rules, by cosine with their mean codes"),
      h(
        "ol",
        { class: "nearest" },
        nearest
          .slice(0, NEAREST)
          .map((near) =>
            h(
              "li",
              { class: near.rule === rule ? "own" : null },
              h("span", {}, ruleLabel(near.rule), near.rule === rule && " (its own)"),
              h("span", { class: "number" }, signed(near.cosine)),
            ),
          ),
      ),
    );
  }

  async function showMap(codes, asked, layer) {
    const { id, ...forAll } = asked;
    if (!map.hasChildNodes())
      map.replaceChildren(waiting("Laying out some hundred codes: the first time takes seconds…"));
    const [around, here, { rule }] = await Promise.all([
      get("sraven/map", { ...forAll, layer }),
      get("sraven/place", { ...asked, layer }),
      codes,
    ]);
    const own = ruleLabel(rule);
    const place = chart(
      `Map of codes in layer ${layer + 1}: ${around.points.length} puzzles, coloured by rule; ` +
        `this puzzle, whose rule is ${own}, is a star.`,
    );
    const names = around.rules.map(ruleLabel);
    const what = `Cosine similarity of the mean codes of ${names.length} rules`;
    map.replaceChildren(
      h(
        "figure",
        { class: "card" },
        caption(
          "Map of codes",
          " (t-SNE): near points have similar codes. Full: held-out combinations; rings: seen.",
        ),
        place,
        h(
          "p",
          { class: "hint" },
          `The star is this puzzle (its rule: ${own}), placed amid the five codes most like its own.`,
        ),
      ),
      h(
        "figure",
        { class: "card" },
        caption("Cosine similarity", " of the rules’ mean codes"),
        matrix(names, around.cosine, { title: what, marked: own }),
      ),
    );
    await drawMap(place, around, here);
  }

  function update(state) {
    controls.update(state);
    const puzzle = puzzleOf(state, app.about);
    const model = modelOf(app.about, puzzle.model);
    showLayerChoice(model?.layers ?? 1, layerOf(state, puzzle.model));
    load(state);
  }

  let layerButtons = null;

  function showLayerChoice(count, layer) {
    if (layerButtons?.count !== count) {
      const names = Array.from({ length: count }, (_, i) => String(i + 1));
      const choose = (chosen) => app.set({ layer: chosen }, { step: false });
      layerButtons = { count, ...choice("Layer", names, choose) };
      layerChoice.replaceChildren(layerButtons.element);
    }
    layerButtons.choose(layer);
  }

  function layerOf(state, model) {
    const last = (modelOf(app.about, model)?.layers ?? 1) - 1;
    const asked = Number.parseInt(state.layer ?? last, 10);
    return asked >= 0 && asked <= last ? asked : last;
  }

  function complete(state) {
    const puzzle = completePuzzle(state, app.about);
    return { ...puzzle, layer: layerOf(state, puzzle.model) };
  }

  return { update, complete };
}

function pairOf({ query, key }) {
  return query && key ? { query: Number(query), key: Number(key) } : null;
}

function drawMap(place, { points, rules }, here) {
  const clouds = rules.map((rule, i) => {
    // Held-out ones first: the legend shows the first of a cloud.
    const own = points
      .filter((point) => point.rule === rule)
      .sort((a, b) => a.split.localeCompare(b.split));
    const [x, y] = [own.map(({ x }) => x), own.map(({ y }) => y)];
    return markers(x, y, {
      name: ruleLabel(rule),
      text: own.map(({ split, target }) => `${ruleLabel(rule)}, ${split}, answer ${target}`),
      hoverinfo: "text",
      marker: {
        size: 7,
        color: seriesColour(i),
        symbol: own.map(({ split }) => (split === "held-out" ? "circle" : "circle-open")),
        opacity: 0.85,
      },
    });
  });
  const star = markers([here.x], [here.y], {
    name: "this puzzle",
    hoverinfo: "name",
    marker: { size: 22, symbol: "star", color: "#F0E442", line: { color: "#1F2933", width: 2 } },
  });
  const bare = {
    showticklabels: false,
    showgrid: false,
    showline: false,
    zeroline: false,
    ticks: "",
  };
  return draw(place, [...clouds, star], {
    xaxis: bare,
    yaxis: { ...bare, scaleanchor: "x" },
    margin: { l: 8, r: 8, t: 8, b: 8 },
    legend: { orientation: "h", y: -0.03, x: 0 },
  });
}
