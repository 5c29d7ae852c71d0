// Where the person puts the missing panel together: a line of buttons for each of its positions.

import { button, h } from "./dom.js";
import { icon, positionName } from "./panels.js";

const KEYS =
  "Keys: ← → change a value, ↑ ↓ go between lines, a digit chooses and goes on, Enter answers.";

/** `chosen` are the values to begin with, null where none is chosen. `onChange(values)` gets the values
 * so far; `onAnswer(values)` all of them; `onGiveUp()` nothing. */
export function answerForm(
  { features, values, mode, chosen: initial },
  { onChange, onAnswer, onGiveUp },
) {
  const lines = Array.from({ length: features }, (_, position) =>
    Array.from({ length: values }, (_, value) =>
      h("input", {
        type: "radio",
        name: `position-${position}`,
        value,
        required: true,
        checked: initial[position] === value,
      }),
    ),
  );
  const chosen = () =>
    lines.map((inputs) => {
      const input = inputs.find(({ checked }) => checked);
      return input ? Number(input.value) : null;
    });

  function choose(position, value) {
    lines[position][value].checked = true;
    onChange(chosen());
  }

  /** Goes to another line: to what is chosen there, or to the value one comes from. */
  function goTo(position, value) {
    const inputs = lines[position];
    if (inputs) (inputs.find(({ checked }) => checked) ?? inputs[value]).focus();
    else submit.focus();
  }

  function onKey(event) {
    const position = lines.findIndex((inputs) => inputs.includes(event.target));
    if (position < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const value = Number(event.target.value);
    if (/^\d$/.test(event.key) && Number(event.key) < values) {
      choose(position, Number(event.key));
      goTo(position + 1, 0);
    } else if (event.key === "ArrowDown") goTo(position + 1, value);
    else if (event.key === "ArrowUp") goTo(Math.max(0, position - 1), value);
    else return;
    event.preventDefault();
  }

  const submit = h("button", { type: "submit", class: "primary" }, "Answer");
  return h(
    "form",
    {
      class: "answer",
      change: () => onChange(chosen()),
      keydown: onKey,
      submit: (event) => {
        event.preventDefault();
        onAnswer(chosen());
      },
    },
    h("h2", {}, "Which panel is missing?"),
    lines.map((inputs, position) =>
      h(
        "fieldset",
        { class: "values" },
        h("legend", { class: "label" }, positionName(position, mode)),
        h(
          "div",
          { class: `values-line ${mode}` },
          inputs.map((input, value) =>
            h(
              "label",
              {},
              input,
              h(
                "span",
                { class: "value" },
                icon(position, value, { mode, values }),
                h("span", { class: mode === "shapes" ? "digit" : "hidden" }, String(value)),
              ),
            ),
          ),
        ),
      ),
    ),
    h(
      "div",
      { class: "row" },
      submit,
      button("quiet", "Show the answer", onGiveUp),
    ),
    h("p", { class: "hint" }, KEYS),
  );
}
