// Rules and splits in words.

/** A rule's name as people write it: `progression+1` is "progression +1". */
export const ruleLabel = (rule) =>
  rule.replaceAll("_", " ").replace(/(?<=[a-z])[+-]/, (sign) => (sign === "-" ? " −" : " +"));

const MEANINGS = {
  constant: () => "the value stays the same along the row",
  addition: (k) => `the third is the first plus the second${modulo(k)}`,
  subtraction: (k) => `the third is the first minus the second${modulo(k)}`,
  distribute_three: () => "the same three values in every row, each time in another order",
  minimum: () => "the third is the smaller of the first two",
  maximum: () => "the third is the larger of the first two",
};

/** What a rule does, for somebody who meets it for the first time. */
export function ruleMeaning(rule, values) {
  const step = /^progression([+-])(\d+)$/.exec(rule);
  if (step) {
    const [, sign, size] = step;
    return `${sign === "+" ? "up" : "down"} by ${size} from panel to panel${modulo(values)}`;
  }
  return MEANINGS[rule]?.(values) ?? "";
}

const modulo = (values) => `, modulo ${values}`;

export const SPLITS = {
  seen: "These rules were seen together in training",
  "held-out": "These rules were never together in training",
};

/** "a", "a and b", "a, b and c". */
export function list(items) {
  const words = items.map(String);
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
