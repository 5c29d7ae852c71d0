// Who was right how often, kept in this browser. Only puzzles that the person answered count, for
// all three, so that the numbers compare; each counts once, by its first answer.

import { recall, remember } from "./storage.js";

const KEY = "hyla-explorer-score";

let kept = load();

/** Counts a puzzle; one that counted before, for the same model, changes nothing. */
export function count(model, puzzle, results) {
  const key = `${model} ${puzzle}`;
  if (key in kept) return;
  kept[key] = results;
  save();
}

/** {person, model, solver, of}: how many each had right, of how many, beside one model. */
export function totals(model) {
  const results = Object.entries(kept)
    .filter(([key]) => key.startsWith(`${model} `))
    .map(([, result]) => result);
  const right = (who) => results.filter((result) => result[who]).length;
  return {
    person: right("person"),
    model: right("model"),
    solver: right("solver"),
    of: results.length,
  };
}

export function reset() {
  kept = {};
  save();
}

function load() {
  try {
    return JSON.parse(recall(KEY)) ?? {};
  } catch {
    return {}; // not ours
  }
}

const save = () => remember(KEY, JSON.stringify(kept));
