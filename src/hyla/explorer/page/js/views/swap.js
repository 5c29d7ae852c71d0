// Give the model another code than its own, and see what it answers.

import { post, serial } from "../api.js";
import { probabilityBars } from "../bars.js";
import {
  button,
  choice,
  details,
  failure,
  field,
  h,
  numberInput,
  percent,
  segments,
  select,
  waiting,
} from "../dom.js";
import { heading, smallBoard, withoutModel } from "../heading.js";
import { modelOf, modelsOf } from "../models.js";
import { grid, question } from "../panels.js";
import { completePuzzle, fetchInstance, picker, puzzleOf } from "../picker.js";
import { listed } from "../route.js";
import { list, ruleLabel } from "../words.js";

export const title = "Swap";

const CODES = { instance: "Of another puzzle", "rule mean": "Mean of a rule", zero: "All zero" };
const PAIRS = { row: "Its row", "all keys": "All keys" };
const VERDICTS = {
  follows: "It follows the donor’s rule",
  stays: "It stays with its own rule",
  copies: "It copies the donor’s answer",
  undecided: "This swap cannot tell",
  other: "It does something else",
};
const [BY_RULE, BY_NUMBER] = ["rule", "number"];
const ANY_OPERANDS = "any";
const FIRST_RULE = "subtraction"; // of any two operands; the first model follows its code if they are the same

export function mount(root, app) {
  if (!modelsOf(app.about, "sraven").length) return withoutModel(root, title, "SRAVEN");

  const controls = picker(app);
  const board = h("div", { class: "board small" });
  const setting = h("section", { class: "card setting", "aria-label": "What is swapped" });
  const result = h("section", {
    class: "result",
    "aria-live": "polite",
    "aria-label": "What the swap did",
  });
  root.append(
    heading(
      "Swap the code",
      "If the code is the operation, then a model that is given the code of another rule should perform ",
      "that rule. Take a donor, put its code in the place of this puzzle’s own in some layers, and see what ",
      "the model now says about the last position of the missing panel.",
    ),
    controls.element,
    h(
      "div",
      { class: "puzzle-and-pairs" },
      smallBoard(board, h("p", { class: "caption" }, "Receives the code"), controls.modes),
      setting,
    ),
    result,
    h(
      "p",
      { class: "hint aside" },
      "One swap is an example, not evidence: by chance, too, an answer can be the one that a rule prescribes. ",
      h("code", {}, "hyla latents RUN"),
      " counts thousands of them beside controls.",
    ),
  );

  const load = serial(async (state) => {
    const puzzle = puzzleOf(state, app.about);
    let instance = null;
    try {
      instance = await controls.load(state);
      if (instance === null) return;
      board.replaceChildren(question(instance, puzzle.mode));
      if (instance.permuted)
        throw new Error(
          "Codes are swapped between puzzles whose features are in order: only there does the last " +
            "position show the same feature in every column.",
        );
      if (!result.hasChildNodes()) result.replaceChildren(waiting("Swapping…"));
      result.setAttribute("aria-busy", "true");
      const swap = swapOf(state, app.about);
      const { code, layers, pairs } = swap;
      const donor = await donorOf(swap, puzzle);
      const request = { model: puzzle.model, id: instance.id, layers, donor, code, pairs };
      show(await post("sraven/swap", request), swap, puzzle);
    } catch (error) {
      if (instance === null) board.replaceChildren();
      const retry =
        instance?.permuted &&
        button("secondary", "Take one with its features in order", () =>
          app.set({ permuted: "false", id: null, answer: null }),
        );
      result.replaceChildren(failure(error, retry));
    } finally {
      result.removeAttribute("aria-busy");
    }
  });

  function show(outcome, swap, puzzle) {
    const { before, after, donor, verdict } = outcome;
    const view = { mode: puzzle.mode, values: puzzle.size.values };
    const last = puzzle.size.features - 1;
    const { attention } = modelOf(app.about, puzzle.model);
    const shown = [
      h(
        "div",
        { class: `swap-verdict ${verdict}` },
        h("p", { class: "big-number" }, `${before.values[last]} → ${after.values[last]}`),
        h("div", {}, h("h2", {}, VERDICTS[verdict]), h("p", {}, outcome.sentence)),
      ),
      outcome.counted && countedLine(outcome.counted),
      h(
        "dl",
        { class: "facts" },
        fact(`Its own rule, ${ruleLabel(outcome.own_rule)}, prescribes`, outcome.own_prescribes),
        outcome.donor_rule &&
          fact(
            `The donor’s rule, ${ruleLabel(outcome.donor_rule)}, would prescribe`,
            outcome.donor_prescribes ?? "nothing: it does not fit these values",
          ),
        donor && fact("The model’s answer to the donor’s own puzzle was", donor.answer),
        donor && fact("The donor’s operands are", donor.same_operands ? "the same" : "others"),
      ),
      donor?.note && h("p", { class: "notice" }, donor.note),
      h(
        "div",
        { class: "charts two" },
        chartOf("Before", attention, before.probabilities, outcome),
        chartOf(`After, swapped in ${layersInWords(swap)}`, attention, after.probabilities, outcome),
      ),
      donor &&
        details(
          "The donor’s puzzle",
          h("div", { class: "board small" }, grid([...donor.panels, donor.target], view)),
        ),
    ];
    result.replaceChildren(...shown.filter(Boolean));
    settings.markOwn(outcome.own_rule);
  }

  const settings = settingControls(app);
  setting.append(...settings.elements);

  function update(state) {
    controls.update(state);
    settings.update(swapOf(state, app.about));
    load(state);
  }

  function complete(state) {
    const { code, donor, rule, number, layers, pairs } = swapOf(state, app.about);
    const byNumber = code === "instance" && donor === BY_NUMBER;
    return {
      ...completePuzzle(state, app.about),
      ...{ code, pairs, layers: layers.join(",") },
      ...(byNumber ? { number } : code !== "zero" && { rule }),
    };
  }

  return { update, complete };
}

/** Whose code is taken: a rule's, or a certain puzzle's. */
async function donorOf({ code, donor, rule, sameOperands, number }, { model }) {
  if (code !== "instance" || donor !== BY_NUMBER) return { rule, same_operands: sameOperands };
  const { id } = await fetchInstance({ model, seed: number, split: "seen", permuted: false });
  return { id };
}

/** What the address says is to be swapped. */
function swapOf(state, about) {
  const { size, model } = puzzleOf(state, about);
  const count = modelOf(about, model)?.layers ?? 1;
  const asked = listed(state.layers).map(Number);
  const valid = asked.filter((layer) => Number.isInteger(layer) && layer >= 0 && layer < count);
  return {
    code: Object.hasOwn(CODES, state.code) ? state.code : "instance",
    donor: state.donor === BY_NUMBER ? BY_NUMBER : BY_RULE,
    rule: state.rule ?? size.rules.find((rule) => rule === FIRST_RULE) ?? size.rules[0],
    sameOperands: state.operands !== ANY_OPERANDS,
    number: state.number ?? "2",
    layers: valid.length ? valid : Array.from({ length: count }, (_, layer) => layer),
    layerCount: count,
    pairs: Object.hasOwn(PAIRS, state.pairs) ? state.pairs : "row",
    rules: size.rules,
  };
}

function settingControls(app) {
  const code = choice("Code to put in", CODES, (chosen) => app.set({ code: chosen }));
  const by = choice(
    "Donor",
    { [BY_RULE]: "Any with a rule", [BY_NUMBER]: "A puzzle by number" },
    (donor) => app.set({ donor }),
  );
  const rule = select([], { name: "rule", change: () => app.set({ rule: rule.value }) });
  const ruleField = field("Donor’s rule (last position)", rule);
  const operands = h("input", {
    type: "checkbox",
    name: "operands",
    change: () => app.set({ operands: operands.checked ? null : ANY_OPERANDS }),
  });
  const operandsField = h("label", { class: "tick" }, operands, " with the same operands: the values before it in its row");
  const number = numberInput((chosen) => app.set({ number: chosen }), { name: "number" });
  const numberField = field("Donor’s number (seen combinations)", number);
  const layers = h("fieldset", { class: "choice" });
  const pairs = choice("Keys whose code is swapped", PAIRS, (chosen) =>
    app.set({ pairs: chosen }),
  );
  let shown = "";

  function update(swap) {
    const key = JSON.stringify([swap.rules, swap.layerCount]);
    if (key !== shown) {
      shown = key;
      rule.replaceChildren(
        ...swap.rules.map((name) => h("option", { value: name }, ruleLabel(name))),
      );
      const names = Array.from({ length: swap.layerCount }, (_, layer) => String(layer + 1));
      layers.replaceChildren(...segments("Layers", names.map(layerBox), names));
    }
    code.choose(swap.code);
    by.choose(swap.donor);
    rule.value = swap.rule;
    number.value = swap.number;
    operands.checked = swap.sameOperands;
    pairs.choose(swap.pairs);
    const ofInstance = swap.code === "instance";
    const byNumber = ofInstance && swap.donor === BY_NUMBER;
    by.element.hidden = !ofInstance;
    ruleField.hidden = byNumber || swap.code === "zero";
    operandsField.hidden = byNumber || !ofInstance;
    numberField.hidden = !byNumber;
    for (const box of layers.querySelectorAll("input"))
      box.checked = swap.layers.includes(Number(box.value));
  }

  /** The own rule's code is a control: which rule that is, the swap has told. */
  function markOwn(own) {
    for (const option of rule.options)
      option.textContent = ruleLabel(option.value) + (option.value === own ? " (its own)" : "");
  }

  function layerBox(name, layer) {
    const box = { type: "checkbox", value: layer, "aria-label": `Layer ${name}` };
    return h("input", { ...box, change: chooseLayers });
  }

  function chooseLayers(event) {
    const checked = [...layers.querySelectorAll("input:checked")].map(({ value }) => value);
    // A swap in no layer is none: the last one stays.
    if (checked.length) app.set({ layers: checked.join(",") });
    else event.target.checked = true;
  }

  const donor = [by.element, ruleField, operandsField, numberField];
  return { elements: [code.element, ...donor, layers, pairs.element], update, markOwn };
}

function layersInWords({ layers, layerCount }) {
  if (layers.length === layerCount) return "all layers";
  return `${layers.length > 1 ? "layers" : "layer"} ${list(layers.map((layer) => layer + 1))}`;
}

/** What many swaps of this kind did, as one swap is an example only. */
function countedLine({ swaps, seeds, follows, stays, copies, control }) {
  const share = ({ value, low, high }) =>
    `${percent(value)} (${Math.round(100 * low)}–${percent(high)})`;
  const shares = [
    follows && `${share(follows)} follow`,
    `${share(stays)} stay`,
    copies && `${share(copies)} give the donor’s own answer`,
  ];
  const models = `${seeds.length > 1 ? "models" : "the model"} of seed ${list(seeds)}`;
  return h(
    "p",
    { class: "counted" },
    `Of ${swaps.toLocaleString("en")} such swaps, of any rules and in all layers, counted `,
    `in ${models} with this attention on held-out combinations: ${list(shares.filter(Boolean))}.`,
    control && ` With the heads of the code permuted, a control, ${share(control)} follow.`,
  );
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, String(value)));
}

function chartOf(name, kind, probabilities, { own_prescribes: own, donor_prescribes: other }) {
  const marks = own === other ? [[own, "both rules"]] : [[own, "own rule"]];
  if (other !== null && own !== other) marks.push([other, "donor’s rule"]);
  return h(
    "figure",
    { class: "card" },
    h("figcaption", {}, name),
    probabilityBars(name, [{ name: "the model", kind, probabilities }], marks),
  );
}
