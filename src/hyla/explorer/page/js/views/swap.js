// Give the model another code than its own, and see what it answers.

import { post, serial } from "../api.js";
import { probabilityBars } from "../bars.js";
import { choice, failure, field, h, select, waiting } from "../dom.js";
import { heading, smallBoard, withoutModel } from "../heading.js";
import { modelOf, modelsOf } from "../models.js";
import { grid } from "../panels.js";
import { fetchInstance, picker, puzzleOf } from "../picker.js";
import { list, ruleLabel } from "../words.js";

export const title = "Swap";

const CODES = [
  ["instance", "Of another puzzle"],
  ["rule mean", "Mean of a rule"],
  ["zero", "All zero"],
];
const VERDICTS = {
  follows: "It follows the donor’s rule",
  stays: "It stays with its own rule",
  copies: "It copies the donor’s answer",
  same: "Nothing can be told",
  other: "It does something else",
};
const [BY_RULE, BY_NUMBER] = ["rule", "number"];

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
      board.replaceChildren(
        grid([...instance.panels, Array(instance.features).fill(null)], {
          mode: puzzle.mode,
          values: instance.values,
        }),
      );
      if (instance.permuted)
        throw new Error(
          "Codes are swapped between puzzles whose features are in order: only there does the last " +
            "position show the same feature in every column.",
        );
      if (!result.hasChildNodes()) result.replaceChildren(waiting("Swapping…"));
      result.setAttribute("aria-busy", "true");
      const swap = swapOf(state, app.about);
      const { code, layers } = swap;
      const donor = await donorOf(swap, puzzle);
      const request = { model: puzzle.model, id: instance.id, layers, donor, code };
      show(await post("sraven/swap", request), swap, puzzle);
    } catch (error) {
      if (instance === null) board.replaceChildren();
      const retry =
        instance?.permuted &&
        h(
          "button",
          {
            type: "button",
            class: "secondary",
            click: () => app.set({ permuted: "false", id: null, answer: null }),
          },
          "Take one with its features in order",
        );
      result.replaceChildren(failure(error, retry));
    } finally {
      result.removeAttribute("aria-busy");
    }
  });

  function show(outcome, swap, puzzle) {
    const { before, after, donor } = outcome;
    const { kind, headline, caveat } = judge(outcome);
    const view = { mode: puzzle.mode, values: puzzle.size.values };
    const last = puzzle.size.features - 1;
    result.replaceChildren(
      h(
        "div",
        { class: `swap-verdict ${kind}` },
        h("p", { class: "big-number" }, `${before.values[last]} → ${after.values[last]}`),
        h("div", {}, h("h2", {}, headline), h("p", {}, outcome.sentence, caveat && ` ${caveat}`)),
      ),
      h(
        "dl",
        { class: "facts" },
        fact(`Its own rule, ${ruleLabel(outcome.own_rule)}, prescribes`, outcome.own_prescribes),
        fact(
          `The donor’s rule, ${ruleLabel(outcome.donor_rule)}, would prescribe`,
          outcome.donor_prescribes ?? "nothing: it does not fit these values",
        ),
        donor && fact("The model’s answer to the donor’s own puzzle was", donor.answer),
      ),
      h(
        "div",
        { class: "charts two" },
        chartOf("Before", before.probabilities, outcome),
        chartOf(`After, swapped in ${layersInWords(swap)}`, after.probabilities, outcome),
      ),
      donor &&
        h(
          "details",
          { class: "help" },
          h("summary", {}, "The donor’s puzzle"),
          h("div", { class: "board small" }, grid([...donor.panels, donor.target], view)),
        ),
    );
  }

  const settings = settingControls(app);
  setting.append(...settings.elements);

  function update(state) {
    controls.update(state);
    settings.update(swapOf(state, app.about));
    load(state);
  }

  return { update };
}

/** Whose code is taken: a rule's, or a certain puzzle's. */
async function donorOf({ code, donor, rule, number }, { model }) {
  if (code !== "instance" || donor !== BY_NUMBER) return { rule };
  const { id } = await fetchInstance({ model, seed: number, split: "seen", permuted: false });
  return { id };
}

/** What can be said in view of what the model did before. */
function judge({ verdict, before, own_prescribes: own, donor_prescribes: other, donor }) {
  if (before.values.at(-1) !== own)
    return {
      kind: "same",
      headline: "This puzzle cannot tell",
      caveat:
        `But the model was wrong before the swap, too: its own rule prescribes ${own}. ` +
        "Take a puzzle that it answers right.",
    };
  const copied = verdict === "follows" && donor?.answer === other;
  return {
    kind: verdict,
    headline: VERDICTS[verdict],
    caveat: copied ? "It is the donor’s own answer as well: copying would look the same." : null,
  };
}

/** What the address says is to be swapped. */
function swapOf(state, about) {
  const { size, model } = puzzleOf(state, about);
  const count = modelOf(about, model)?.layers ?? 1;
  const asked = (state.layers ?? "").split(",").filter(Boolean).map(Number);
  const valid = asked.filter((layer) => Number.isInteger(layer) && layer >= 0 && layer < count);
  return {
    code: CODES.some(([code]) => code === state.code) ? state.code : "instance",
    donor: state.donor === BY_NUMBER ? BY_NUMBER : BY_RULE,
    rule: state.rule ?? size.rules[0],
    number: state.number ?? "2",
    layers: valid.length ? valid : Array.from({ length: count }, (_, layer) => layer),
    layerCount: count,
    rules: size.rules,
  };
}

function settingControls(app) {
  const code = choice("Code to put in", CODES, (chosen) => app.set({ code: chosen }));
  const by = choice(
    "Donor",
    [
      [BY_RULE, "Any with a rule"],
      [BY_NUMBER, "A puzzle by number"],
    ],
    (donor) => app.set({ donor }),
  );
  const rule = select([], { name: "rule", change: () => app.set({ rule: rule.value }) });
  const ruleField = field("Donor’s rule (last position)", rule);
  const number = h("input", {
    type: "number",
    name: "number",
    min: 0,
    max: 2 ** 31 - 1,
    required: true,
    change: () => number.reportValidity() && app.set({ number: number.value }),
  });
  const numberField = field("Donor’s number (seen combinations)", number);
  const layers = h("fieldset", { class: "choice" });
  let shown = "";

  function update(swap) {
    const key = JSON.stringify([swap.rules, swap.layerCount]);
    if (key !== shown) {
      shown = key;
      rule.replaceChildren(
        ...swap.rules.map((name) => h("option", { value: name }, ruleLabel(name))),
      );
      layers.replaceChildren(
        h("legend", { class: "label" }, "Layers"),
        checkboxes(swap.layerCount),
      );
    }
    code.choose(swap.code);
    by.choose(swap.donor);
    rule.value = swap.rule;
    number.value = swap.number;
    const byNumber = swap.code === "instance" && swap.donor === BY_NUMBER;
    by.element.hidden = swap.code !== "instance";
    ruleField.hidden = byNumber;
    numberField.hidden = !byNumber;
    for (const box of layers.querySelectorAll("input"))
      box.checked = swap.layers.includes(Number(box.value));
  }

  const checkboxes = (count) =>
    h(
      "div",
      { class: "segments" },
      Array.from({ length: count }, (_, layer) =>
        h(
          "label",
          {},
          h("input", {
            type: "checkbox",
            value: layer,
            "aria-label": `Layer ${layer + 1}`,
            change: chooseLayers,
          }),
          h("span", {}, String(layer + 1)),
        ),
      ),
    );

  function chooseLayers(event) {
    const checked = [...layers.querySelectorAll("input:checked")].map(({ value }) => value);
    // A swap in no layer is none: the last one stays.
    if (checked.length) app.set({ layers: checked.join(",") });
    else event.target.checked = true;
  }

  return { elements: [code.element, by.element, ruleField, numberField, layers], update };
}

function layersInWords({ layers, layerCount }) {
  if (layers.length === layerCount) return "all layers";
  return `${layers.length > 1 ? "layers" : "layer"} ${list(layers.map((layer) => layer + 1))}`;
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, String(value)));
}

function chartOf(name, probabilities, { own_prescribes: own, donor_prescribes: other }) {
  const marks = own === other ? [[own, "both rules"]] : [[own, "own rule"]];
  if (other !== null && own !== other) marks.push([other, "donor’s rule"]);
  return h(
    "figure",
    { class: "card" },
    h("figcaption", {}, name),
    probabilityBars(name, [{ name: "the model", kind: "model", probabilities }], marks),
  );
}
