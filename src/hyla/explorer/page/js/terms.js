// Fuzzy logic functions as terms: a sign for each variable, negative where it is negated.

import { button, h } from "./dom.js";

const MAX_TERMS = 4;

/** The name of a variable, from 0. */
export const variableName = (i) =>
  `x${String(i + 1).replaceAll(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit])}`;

/** Terms as text, a letter for each variable: `pn.np` is x₁∧¬x₂ ∨ ¬x₁∧x₂. */
export const writeTerms = (terms) =>
  terms.map((term) => term.map((sign) => (sign < 0 ? "n" : "p")).join("")).join(".");

/** The reverse; null for what is no such text. */
export function readTerms(text, variables) {
  const terms = (text ?? "").split(".");
  const sound =
    terms.length <= MAX_TERMS &&
    terms.every((term) => term.length === variables && /^[pn]+$/.test(term));
  return sound ? terms.map((term) => [...term].map((letter) => (letter === "n" ? -1 : 1))) : null;
}

/** Terms to start with, which differ: term i negates variable i. */
export const firstTerms = (variables, count) =>
  Array.from({ length: count }, (_, t) =>
    Array.from({ length: variables }, (_, v) => (v === t ? -1 : 1)),
  );

/** A grid of terms by variables; pressing one negates it. `onChange` gets the new terms. */
export function termEditor(variables, onChange) {
  const element = h("div", { class: "terms" });

  function update(terms) {
    const focused = element.contains(document.activeElement)
      ? document.activeElement.getAttribute("data-place")
      : null;
    element.replaceChildren(
      ...terms.map((_, t) => line(terms, t)),
      button("quiet", "+ Add a term", () => onChange([...terms, Array(variables).fill(1)]), {
        disabled: terms.length >= MAX_TERMS,
        "data-place": "add",
      }),
    );
    // Drawn anew under the keyboard's focus: give it back.
    if (focused) element.querySelector(`[data-place="${focused}"]`)?.focus();
  }

  function line(terms, t) {
    return h(
      "div",
      { class: "term", role: "group", "aria-label": `Term ${t + 1}` },
      h("span", { class: "or", "aria-hidden": "true" }, t ? "or" : ""),
      terms[t].map((sign, v) => {
        const [kind, mark] = sign < 0 ? ["literal negated", "¬"] : ["literal", ""];
        return button(kind, mark + variableName(v), () => onChange(negated(terms, t, v)), {
          "aria-pressed": String(sign < 0),
          "aria-label": `not x${v + 1}`,
          "data-place": `${t},${v}`,
        });
      }),
      terms.length > 1 &&
        button("quiet", "×", () => onChange(terms.filter((_, i) => i !== t)), {
          "aria-label": `Remove term ${t + 1}`,
        }),
    );
  }

  return { element, update };
}

function negated(terms, t, v) {
  const changed = terms.map((term) => [...term]);
  changed[t][v] *= -1;
  return changed;
}
