// The models that the server offers, and what to call them.

import { percent } from "./dom.js";

export const modelsOf = (about, task) => about.models.filter((model) => model.task === task);

export const modelOf = (about, id) => about.models.find((model) => model.id === id);

/** What a model is called where there is little room: as its attention is, unless another among
 * those shown has the same. */
export function shortName(model, among = []) {
  const alone = among.filter(({ attention }) => attention === model.attention).length < 2;
  return alone ? model.name : model.label;
}

/** How good a model is, in one sentence. */
export function standing({ label, scores, metric, note }) {
  const sides = [
    ["test", "on combinations it has seen"],
    ["ood", "on held-out ones"],
  ].filter(([split]) => split in scores);
  const value = (split) =>
    metric === "accuracy" ? percent(scores[split]) : scores[split].toFixed(2);
  const known = sides.map(([split, where]) => `${value(split)} ${where}`).join(", ");
  const measure = metric === "accuracy" ? "Right:" : `${metric === "r2" ? "R²" : metric}:`;
  return [`${label}.`, known && `${measure} ${known}.`, note].filter(Boolean).join(" ");
}
