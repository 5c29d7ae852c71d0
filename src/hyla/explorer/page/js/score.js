// Who was right how often, kept in this browser. Only puzzles that the person answered count, for
// all three, so that the numbers compare; each counts once, by its first answer.

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
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {}; // no storage, or not ours
  }
}

function save() {
  try {
    localStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // Storage is full or forbidden: the score lasts as long as the page.
  }
}
