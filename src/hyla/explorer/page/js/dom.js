// Elements from plain data. Text always becomes a text node, so nothing that the server sends is
// ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Attributes that are functions are listeners; null, undefined and false ones are
 * left out; true ones are empty. Children are nodes, strings or numbers, nested as you like; null,
 * undefined and false ones are left out, too. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element, otherwise as `h`. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value);
  }
  const isThere = (child) => child !== null && child !== undefined && child !== false;
  element.append(...children.flat(Infinity).filter(isThere));
  return element;
}

/** A label over its control. */
export function field(label, control, attributes = {}) {
  return h(
    "label",
    { class: "field", ...attributes },
    h("span", { class: "label" }, label),
    control,
  );
}

/** A drop-down list of [value, text] pairs. */
export function select(options, attributes = {}) {
  return h(
    "select",
    attributes,
    options.map(([value, text]) => h("option", { value }, text)),
  );
}

/** A button; `kind` says how much it stands out. */
export function button(kind, text, click, attributes = {}) {
  return h("button", { type: "button", class: kind, click, ...attributes }, text);
}

/** A whole number from 0; `onChange` gets it as text, if it is one. */
export function numberInput(onChange, attributes = {}) {
  const change = () => input.reportValidity() && onChange(String(input.valueAsNumber));
  const range = { type: "number", min: 0, max: 2 ** 31 - 1, required: true };
  const input = h("input", { ...range, change, ...attributes });
  return input;
}

/** What stands in a fieldset of native radio buttons or checkboxes that look like one control. */
export const segments = (legend, inputs, texts) => [
  h("legend", { class: "label" }, legend),
  h(
    "div",
    { class: "segments" },
    inputs.map((input, i) => h("label", {}, input, h("span", {}, texts[i]))),
  ),
];

/** More for who asks for it. */
export const details = (summary, ...content) =>
  h("details", { class: "help" }, h("summary", {}, summary), content);

/** What may be wider than the screen, and can be scrolled by the keyboard too. */
export function scrolled(label, content) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, content);
}

/** Buttons of which one is pressed: native radio buttons, so arrows and Tab work as expected.
 * `texts` are what they say, by their values. */
export function choice(legend, texts, onChoose) {
  const name = uniqueId("choice");
  const inputs = Object.keys(texts).map((value) =>
    h("input", { type: "radio", name, value, change: () => onChoose(value) }),
  );
  const shown = segments(legend, inputs, Object.values(texts));
  const element = h("fieldset", { class: "choice" }, shown);
  const choose = (value) => {
    for (const input of inputs) input.checked = input.value === String(value);
  };
  return { element, choose };
}

let count = 0;

export function uniqueId(prefix) {
  count += 1;
  return `${prefix}-${count}`;
}

/** A box that says what went wrong, in the place where the result would be. */
export function failure(error, ...more) {
  return h("div", { class: "notice error", role: "alert" }, h("p", {}, error.message), more);
}

/** Says what a link names and this explorer does not have; nothing if there is nothing. */
export function absentNotice(kind, ids) {
  const text = `The link names ${kind} that are not here: ${ids.join(", ")}.`;
  return ids.length ? [h("p", { class: "notice" }, text)] : [];
}

export function waiting(text) {
  return h("p", { class: "waiting", role: "status" }, text);
}

/** A spot of the colour, or of the class, that stands for something. */
export function swatch(attributes) {
  const spot = svg("rect", { width: 10, height: 10, rx: 3, ...attributes });
  return svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, spot);
}

/** A drawing of this size, which is read aloud as its label. */
export function drawing(kind, [width, height], label, ...content) {
  const attributes = { class: kind, viewBox: `0 0 ${width} ${height}`, role: "img" };
  return svg("svg", { ...attributes, "aria-label": label }, content);
}

/** What a figure shows, its name first. */
export const caption = (name, ...more) => h("figcaption", {}, h("strong", {}, name), more);

/** Marks a part of the page as busy while `task` fills it; there it says what went wrong. */
export async function busily(element, task) {
  element.setAttribute("aria-busy", "true");
  try {
    await task();
  } catch (error) {
    element.replaceChildren(failure(error));
  } finally {
    element.removeAttribute("aria-busy");
  }
}

/** `share` as a percentage without decimals. */
export const percent = (share) => `${Math.round(100 * share)} %`;

/** A number with a real minus sign. */
export const signed = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
