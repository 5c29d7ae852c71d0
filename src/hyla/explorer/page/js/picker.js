// Which puzzle is shown: the controls that the Puzzle, Code and Swap views share.

import { get } from "./api.js";
import { button, choice, field, h, numberInput, select } from "./dom.js";
import { modelOf, modelsOf, shortName, standing } from "./models.js";
import { canShowShapes } from "./panels.js";
import { ruleLabel } from "./words.js";

const OWN = "own";
const SEEDS = 100_000;
const FIRST_SEED = "1044"; // four rules of different kinds, and only one panel fits

/** The puzzle that the address asks for. */
export function puzzleOf(state, about) {
  const asked = modelOf(about, state.model);
  const model = asked?.task === "sraven" ? asked : modelsOf(about, "sraven")[0];
  const rules = state.rules ?? "";
  return {
    // An unknown name is passed on: the server says what is wrong with it.
    model: state.model ?? model.id,
    size: model.sraven,
    id: state.id ?? null,
    seed: state.seed ?? FIRST_SEED,
    split: rules ? null : (state.split ?? "held-out"),
    permuted: state.permuted === "true",
    rules,
    mode: state.show === "numbers" || !canShowShapes(model.sraven) ? "numbers" : "shapes",
  };
}

/** What an address has to say for the same puzzle to be shown anywhere; an id says all by itself. */
export function completePuzzle(state, about) {
  const { model, id, seed, split, permuted } = puzzleOf(state, about);
  return id ? { model } : { model, seed, split, permuted };
}

/** Asks the server for it. */
export function fetchInstance({ model, id, seed, split, permuted, rules }) {
  return id
    ? get("sraven/puzzle", { model, id })
    : get("sraven/instance", { model, seed, split, permuted, rules });
}

const keyOf = ({ model, id, seed, split, permuted, rules }) =>
  JSON.stringify(id ? [model, id] : [model, seed, split, permuted, rules]);

/** What to change in a state to get another puzzle of the same kind. */
export const anotherPuzzle = () => ({
  ...forgetPuzzle,
  seed: String(Math.floor(SEEDS * Math.random())),
});

const forgetPuzzle = { id: null, answer: null };

/** The controls, and `modes` beside them: shapes or numbers. `update(state)` makes them show a state;
 * `load(state)` returns its puzzle, or null if the visitor went on meanwhile. */
export function picker(app) {
  const { about } = app;
  // On a small screen folded away, so that the puzzle is in sight; the style sheet has the same width.
  const wide = matchMedia("(min-width: 761px)");
  const contents = h("div", { class: "picker-contents" });
  const element = h(
    "details",
    { class: "picker", open: wide.matches },
    h("summary", {}, "Choose a model and a puzzle"),
    contents,
  );
  wide.addEventListener("change", () => {
    element.open ||= wide.matches;
  });
  const modes = choice("Show as", { shapes: "Shapes", numbers: "Numbers" }, (mode) =>
    app.set({ show: mode }, { step: false }),
  );
  let controls = null;
  let loaded = { key: null, instance: null };

  async function load(state) {
    const puzzle = puzzleOf(state, app.about);
    const key = keyOf(puzzle);
    if (key !== loaded.key) {
      loaded = { key: null, instance: null };
      const instance = await fetchInstance(puzzle);
      if (state !== app.state) return null;
      loaded = { key, instance };
      update(state);
    }
    return loaded.instance;
  }

  function update(state) {
    const puzzle = puzzleOf(state, about);
    // Sizes differ between models: other rules, more features.
    if (controls?.shape !== puzzle.size.shape) {
      controls = build(app, puzzle.size, () => loaded.instance);
      contents.replaceChildren(...controls.elements);
    }
    controls.update(puzzle, keyOf(puzzle) === loaded.key ? loaded.instance : null);
    modes.choose(puzzle.mode);
    modes.element.hidden = !canShowShapes(puzzle.size);
  }

  return { element, modes: modes.element, update, load };
}

function build(app, size, current) {
  const { rules, features, shape } = size;
  const models = modelsOf(app.about, "sraven");
  const change = (changes) => app.set({ ...changes, ...forgetPuzzle });

  const model = select(
    models.map((one) => [one.id, shortName(one, models)]),
    { name: "model", change: () => changeModel(app, model.value, shape, current()) },
  );
  const combination = choice(
    "Combination of rules",
    { "held-out": "Held out", seen: "Seen", [OWN]: "My choice" },
    (chosen) =>
      chosen === OWN
        ? change({ rules: defaultRules(rules, features).join(","), split: null })
        : change({ rules: null, split: chosen }),
  );
  const orders = { false: "In order", true: "Shuffled" };
  const columns = choice("Features in the columns", orders, (permuted) => change({ permuted }));
  const seed = numberInput((number) => change({ seed: number }), { name: "seed" });
  const fresh = button("secondary", "New puzzle", () => app.set(anotherPuzzle()));
  const ruleSelects = Array.from({ length: features }, (_, i) =>
    select(
      rules.map((rule) => [rule, ruleLabel(rule)]),
      {
        "aria-label": `Rule ${i + 1} of ${features}`,
        change: () => change({ rules: ruleSelects.map(({ value }) => value).join(",") }),
      },
    ),
  );
  const about = h("p", { class: "hint standing" });
  const own = h(
    "fieldset",
    { class: "own-rules" },
    h("legend", { class: "label" }, "The rules, in any order"),
    h("div", { class: "row" }, ruleSelects),
  );

  function update(puzzle, instance) {
    model.value = puzzle.model;
    combination.choose(puzzle.rules ? OWN : (instance?.split ?? puzzle.split));
    columns.choose(instance?.permuted ?? puzzle.permuted);
    const known = modelOf(app.about, puzzle.model);
    about.textContent = known ? standing(known) : "";
    // Nothing is taken away from somebody who is typing.
    if (document.activeElement !== seed) seed.value = instance?.seed ?? puzzle.seed;
    own.hidden = !puzzle.rules;
    puzzle.rules.split(",").forEach((rule, i) => {
      if (ruleSelects[i]) ruleSelects[i].value = rule;
    });
  }

  const elements = [
    field("Model", model),
    combination.element,
    columns.element,
    h("div", { class: "field seed" }, field("Puzzle number", seed), fresh),
    own,
    about,
  ];
  return { shape, elements, update };
}

/** Another model gets the same puzzle, if it can take it. */
function changeModel(app, model, shape, instance) {
  const [before, after] = [puzzleOf(app.state, app.about).model, model].map((id) =>
    modelOf(app.about, id),
  );
  const fits = after.sraven.shape === shape;
  app.set({
    model,
    ...(!fits && { rule: null }),
    ...(before?.layers !== after.layers && { layer: null, layers: null }),
    id: fits ? (instance?.id ?? null) : null,
    rules: fits ? app.state.rules : null,
    answer: fits ? app.state.answer : null,
  });
}

/** Rules to start from: as different as there are. */
function defaultRules(rules, features) {
  const wanted = ["constant", "progression+1", "addition", "distribute_three"];
  const known = [...new Set([...wanted, ...rules])].filter((rule) => rules.includes(rule));
  return Array.from({ length: features }, (_, i) => known[i % known.length]);
}
