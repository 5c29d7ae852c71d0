// What is shown of a puzzle once it is answered.

import { probabilityBars } from "./bars.js";
import { h, percent, swatch } from "./dom.js";
import { featureColour, presetOf } from "./palette.js";
import { picture, positionName } from "./panels.js";
import { ruleLabel } from "./words.js";

/** `correspondence[column][position]` = feature, of what the server reveals. */
export function correspondence(features) {
  const columns = features[0].positions.map(() => []);
  for (const { feature, positions } of features)
    positions.forEach((position, column) => {
      columns[column][position] = feature;
    });
  return columns;
}

/** The three answers beside each other. `person` is null if there is none. */
export function answersBeside({ person, label, answers, target, mode, values }) {
  const isRight = (panel) => panel.every((value, i) => value === target[i]);
  const card = (name, panel, right) =>
    h(
      "li",
      { class: right ? "right" : "wrong" },
      h("h3", {}, name),
      picture(panel, { mode, values, label: name }),
      h("p", { class: "verdict" }, right ? "✓ right" : "✗ wrong"),
    );
  return h(
    "ul",
    { class: "answers" },
    person
      ? card("You", person, isRight(person))
      : h("li", {}, h("h3", {}, "Truth"), picture(target, { mode, values, label: "Truth" })),
    card(label, answers.model.values, answers.model.correct),
    card("Exact solver", answers.solver.values, answers.solver.correct),
  );
}

/** One sentence on who was right. */
export function whoWasRight({ person, label, answers, target }) {
  const model = answers.model.correct ? "is right" : "is wrong";
  if (!person) return `This is the answer. ${label} ${model}.`;
  const right = person.every((value, i) => value === target[i]);
  if (right === answers.model.correct)
    return right ? `You and ${label} are both right.` : `You and ${label} are both wrong.`;
  return right ? `You are right, ${label} is not.` : `${label} is right, you are not.`;
}

/** The rule of each feature, with its rows. */
export function rulesRevealed(features, { mode, permuted }) {
  const where = ({ positions }) =>
    permuted
      ? positions.map((position) => positionName(position, mode)).join(" → ")
      : positionName(positions[0], mode);
  return h(
    "ol",
    { class: "rules" },
    features.map((feature) =>
      h(
        "li",
        {},
        swatch({ fill: featureColour(feature.feature) }),
        h(
          "div",
          {},
          h("h3", {}, ruleLabel(feature.rule)),
          h("p", { class: "where" }, where(feature)),
          h("p", {}, feature.sentence),
          h(
            "ul",
            { class: "rows", "aria-label": "Its rows" },
            feature.rows.map((row, r) =>
              h(
                "li",
                {},
                row.map((value, c) =>
                  h("span", { class: isLast(feature.rows, r, c) ? "asked" : null }, String(value)),
                ),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

const isLast = (rows, r, c) => r === rows.length - 1 && c === rows[r].length - 1;

/** Whether another answer could be defended. */
export function ambiguity({ num_answers: count, posterior, ...solver }, { mode, values }) {
  if (!solver.ambiguous_by_definition)
    return h(
      "p",
      {},
      "Only one panel fits what is shown, whatever rules one tries: the puzzle is not ambiguous.",
    );
  const text = h(
    "p",
    {},
    h("strong", {}, `${count} different panels fit what is shown`),
    ", each under some set of rules: by the paper’s definition the puzzle is ambiguous. The exact ",
    `solver takes the most probable one, which has ${percent(posterior)}. By the check in the authors’ code, `,
    "which asks for a conflict in every feature, it is ",
    solver.ambiguous_by_authors ? "ambiguous too." : "not ambiguous.",
  );
  const candidates = solver.answers.map((candidate) =>
    h(
      "li",
      {},
      picture(candidate.values, { mode, values, label: "A panel that fits" }),
      h("p", { class: "verdict" }, percent(candidate.probability)),
    ),
  );
  return h("div", {}, text, h("ul", { class: "answers candidates" }, candidates));
}

/** How sure model and solver are, position by position. */
export function probabilities({ person, label, attention, answers, target, mode }) {
  return h(
    "div",
    { class: "charts" },
    target.map((truth, position) => {
      const name = positionName(position, mode);
      const marks = [[truth, person?.[position] === truth ? "truth and you" : "truth"]];
      if (person && person[position] !== truth) marks.push([person[position], "you"]);
      return h(
        "figure",
        {},
        h("figcaption", {}, name),
        probabilityBars(
          name,
          [
            { name: label, kind: attention, probabilities: answers.model.probabilities[position] },
            {
              name: "solver",
              kind: "solver",
              probabilities: answers.solver.probabilities[position],
            },
          ],
          marks,
        ),
      );
    }),
  );
}

export function legend({ label, attention }) {
  const key = (kind, text) => h("li", {}, swatch({ class: `bar ${presetOf(kind)}` }), text);
  return h("ul", { class: "legend" }, key(attention, label), key("solver", "exact solver"));
}
