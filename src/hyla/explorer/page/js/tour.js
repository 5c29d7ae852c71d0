// A guided tour: five addresses, and over each view what to look at there.

import { h } from "./dom.js";
import * as route from "./route.js";

const PUZZLE = { seed: "1044", split: "held-out", permuted: "false" };

const STEPS = [
  [
    "puzzle",
    PUZZLE,
    "Solve this puzzle, or show its answer. The model was trained on each of its rules, and never " +
      "on the four together.",
  ],
  [
    "code",
    PUZZLE,
    "These bars are the code: one number for each head. See which rule’s mean code is nearest, layer " +
      "by layer, and where the star lies among puzzles of its own colour.",
  ],
  [
    "swap",
    { ...PUZZLE, rule: "subtraction" },
    "Now the model computes with the code of a puzzle that subtracts the same two numbers, and its " +
      "answer becomes their difference. That is the other puzzle’s answer, too: did the code carry " +
      "the operation over, or the answer?",
  ],
  [
    "swap",
    { ...PUZZLE, rule: "subtraction", operands: "any" },
    "A control: the code of a subtraction of other numbers. The answer becomes the other puzzle’s, not " +
      "the difference of this one’s numbers: the code did not bring the operation alone. The line " +
      "below the verdict says how often each happens.",
  ],
  [
    "fuzzy",
    { terms: "npp.pnp", query: "0.35,0.6,0.8", variable: "1" },
    "Another task, the same question: draw a function that no model has seen, drag the point, and " +
      "compare the models’ curves with the target. That is all; everything else is yours to try.",
  ],
];

/** What stands over a view: a step of the tour, or on the first view an invitation; else nothing. */
export function tour(view, state, first) {
  const step = Number.parseInt(state.tour ?? "0", 10);
  if (!STEPS[step - 1]) return view === first ? invitation() : null;
  const [, , text] = STEPS[step - 1];
  return h(
    "div",
    { class: "notice tour" },
    h("p", {}, h("strong", {}, `Tour, ${step} of ${STEPS.length}. `), text),
    h(
      "p",
      { class: "row" },
      step > 1 && h("a", { href: addressOf(step - 1) }, "Back"),
      step < STEPS.length && h("a", { href: addressOf(step + 1) }, "Next step"),
      h("a", { href: route.address(view, { ...state, tour: null }) }, "End the tour"),
    ),
  );
}

const invitation = () =>
  h("p", { class: "tour" }, h("a", { href: addressOf(1) }, "New here? Take the tour, in five steps"));

function addressOf(step) {
  const [view, state] = STEPS[step - 1];
  return route.address(view, { ...state, tour: step });
}
