// Solve a puzzle beside the model and the exact solver.

import { answerForm } from "../answer_form.js";
import { get, serial } from "../api.js";
import { button, details, failure, h, waiting } from "../dom.js";
import { heading, withoutModel } from "../heading.js";
import { modelOf, modelsOf, shortName } from "../models.js";
import * as outcome from "../outcome.js";
import { grid } from "../panels.js";
import { anotherPuzzle, completePuzzle, picker, puzzleOf } from "../picker.js";
import * as score from "../score.js";
import { ruleLabel, ruleMeaning, SPLITS } from "../words.js";

export const title = "Puzzle";

const GIVEN_UP = "none";

const introduction = () => [
  "For every pair of tokens, attention computes one score per head. Read together, these scores are a ",
  "short code. The paper ",
  h("cite", {}, "Attention as a Hypernetwork"),
  " claims that the code decides which operation the layer applies, so that attention is a network that ",
  "configures another network. Here you can put that to the test: solve a puzzle beside a small transformer, look at its code, swap the code ",
  "for another one, and see what becomes of the answer.",
];

export function mount(root, app) {
  if (!modelsOf(app.about, "sraven").length) return withoutModel(root, title, "SRAVEN");

  let instance = null;
  let chosen = [];
  // Only what is answered here and now counts, not an answer that came with a link.
  let answeredNow = false;
  // What to go on with, for the keyboard, once it is there.
  let focusOn = null;

  const controls = picker(app);
  const scoreboard = h("section", {
    class: "score",
    "aria-label": "Score so far, kept in this browser",
  });
  const board = h("div", { class: "board" });
  const caption = h("p", { class: "caption" });
  const boardHead = h("div", { class: "board-head" }, caption, controls.modes);
  const side = h("div", { class: "side" });
  const after = h("div", { class: "after" });
  const ruleList = h("dl", { class: "rule-list" });
  const announcement = h("p", { class: "hidden", "aria-live": "polite" });
  root.append(
    h("p", { class: "introduction" }, introduction()),
    h(
      "div",
      { class: "row spread" },
      heading(
        "Find the missing panel",
        "In each row, every attribute follows a rule, the same in all three rows. The first two rows ",
        "show the rules; complete the third.",
      ),
      scoreboard,
    ),
    controls.element,
    h("div", { class: "puzzle-and-answer" }, h("div", {}, boardHead, board), side),
    announcement,
    after,
    details("Which rules are there?", ruleList),
  );

  const load = serial(async (state) => {
    if (!board.hasChildNodes()) board.replaceChildren(waiting("Making a puzzle…"));
    side.inert = true; // what is there belongs to the puzzle before
    try {
      const found = await controls.load(state);
      if (found === null) return;
      if (found !== instance) {
        instance = found;
        chosen = Array(instance.features).fill(null);
        caption.textContent = SPLITS[instance.split];
      }
      await show(state, puzzleOf(state, app.about));
    } catch (error) {
      caption.textContent = "";
      board.replaceChildren(failure(error));
      side.replaceChildren();
      after.replaceChildren();
    } finally {
      side.inert = state !== app.state;
    }
    takeFocus();
  });

  async function show(state, puzzle) {
    const { mode } = puzzle;
    const { values, features } = instance;
    const view = { mode, values };
    const answer = parseAnswer(state.answer, instance);
    if (answer === null) {
      const draw = () => board.replaceChildren(grid([...instance.panels, chosen], view));
      const form = answerForm(
        { features, values, mode, chosen },
        {
          onChange: (values) => {
            chosen = values;
            draw();
          },
          onAnswer: (given) => {
            answeredNow = true;
            focusOn = ".primary";
            app.set({ answer: given.join(",") });
          },
          onGiveUp: () => {
            focusOn = ".primary";
            app.set({ answer: GIVEN_UP });
          },
        },
      );
      draw();
      side.replaceChildren(form);
      after.replaceChildren();
      announcement.textContent = "";
    } else {
      const [answers, truth] = await Promise.all([
        get("sraven/answers", { model: puzzle.model, id: instance.id }),
        get("sraven/reveal", { id: instance.id }),
      ]);
      if (state !== app.state) return;
      reveal({ ...view, person: answer.values, answers, truth, puzzle });
    }
    showScore(puzzle);
  }

  function reveal({ mode, values, person, answers, truth, puzzle }) {
    const label = labelOf(app, puzzle.model);
    const { attention } = modelOf(app.about, puzzle.model);
    const shown = { person, label, attention, answers, target: truth.target, mode, values };
    if (person && answeredNow)
      score.count(puzzle.model, instance.id, {
        person: person.every((value, i) => value === truth.target[i]),
        model: answers.model.correct,
        solver: answers.solver.correct,
      });
    const correspondence = outcome.correspondence(truth.features);
    board.replaceChildren(
      grid([...instance.panels, truth.target], { mode, values, correspondence }),
    );
    const verdict = outcome.whoWasRight(shown);
    side.replaceChildren(
      h(
        "section",
        { class: "outcome", "aria-label": "Answers" },
        h("h2", {}, verdict),
        outcome.answersBeside(shown),
        h(
          "div",
          { class: "row" },
          button("primary", "Next puzzle", nextPuzzle),
          h("a", { class: "button secondary", href: app.address("code") }, "Look at the code"),
          h("a", { class: "button quiet", href: app.address("swap") }, "Swap it"),
        ),
      ),
    );
    after.replaceChildren(
      h("h2", {}, "The rules were"),
      outcome.rulesRevealed(truth.features, { mode, permuted: instance.permuted }),
      h("h2", {}, "How sure they are"),
      outcome.legend(shown),
      outcome.probabilities(shown),
      h("h2", {}, "Could one answer otherwise?"),
      outcome.ambiguity(answers.solver, { mode, values }),
    );
    announcement.textContent = verdict;
    answeredNow = false;
  }

  function takeFocus() {
    if (focusOn) side.querySelector(focusOn)?.focus({ preventScroll: true });
    focusOn = null;
  }

  function nextPuzzle() {
    focusOn = "input";
    app.set(anotherPuzzle());
  }

  function showScore(puzzle) {
    const { person, model, solver, of } = score.totals(puzzle.model);
    const reset = () => {
      score.reset();
      showScore(puzzle);
    };
    const entry = (name, right) => h("div", {}, h("dt", {}, name), h("dd", {}, `${right}/${of}`));
    scoreboard.replaceChildren(
      h(
        "dl",
        {},
        entry("You", person),
        entry(labelOf(app, puzzle.model), model),
        entry("Solver", solver),
      ),
      button("quiet", "Reset", reset, { disabled: of === 0 }),
    );
  }

  function update(state) {
    const puzzle = puzzleOf(state, app.about);
    controls.update(state);
    ruleList.replaceChildren(
      ...puzzle.size.rules.flatMap((rule) => [
        h("dt", {}, ruleLabel(rule)),
        h("dd", {}, ruleMeaning(rule, puzzle.size.values)),
      ]),
    );
    load(state);
  }

  /** An answer that does not fit the puzzle is none: a link may be from an explorer of others. */
  function complete(state) {
    const { size } = puzzleOf(state, app.about);
    const answer = parseAnswer(state.answer, size) ? state.answer : null;
    return { ...completePuzzle(state, app.about), answer };
  }

  return { update, complete };
}

const labelOf = (app, model) => shortName(modelOf(app.about, model));

/** {values}, which are null for a person who gave up; null while there is no answer that fits. */
function parseAnswer(text, { features, values }) {
  if (!text) return null;
  if (text === GIVEN_UP) return { values: null };
  const given = text.split(",").map(Number);
  const valid =
    given.length === features &&
    given.every((value) => Number.isInteger(value) && value >= 0 && value < values);
  return valid ? { values: given } : null;
}
