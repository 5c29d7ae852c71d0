// Draw a fuzzy logic function, drag the query, and see what models make of it from examples alone.

import { post, serial } from "../api.js";
import { chart, draw, markers, path } from "../charts.js";
import {
  absentNotice,
  choice,
  failure,
  field,
  h,
  numberInput,
  segments,
  select,
  signed,
  swatch,
  waiting,
} from "../dom.js";
import { examplesShown } from "../examples.js";
import { heading, withoutModel } from "../heading.js";
import { modelsOf, shortName } from "../models.js";
import { lineStyles } from "../palette.js";
import { listed } from "../route.js";
import { firstTerms, readTerms, termEditor, variableName, writeTerms } from "../terms.js";
import { colour } from "../theme.js";

export const title = "Fuzzy logic";

const MAX_MODELS = 8; // more lines cannot be told apart; the server takes 16

const SEEN = {
  seen: "learned this combination of terms",
  "held-out": "never saw this combination of terms",
  "unknown term": "never saw one of these terms",
  other: "never saw functions like this",
};

export function mount(root, app) {
  const models = modelsOf(app.about, "fuzzy");
  if (!models.length) return withoutModel(root, title, "fuzzy logic");

  // Models of one shape can be asked about the same function.
  const shapes = new Map(models.map(({ fuzzy }) => [fuzzy.shape, fuzzy]));
  const shape = select(
    [...shapes].map(([id, { variables, terms, context }]) => [
      id,
      `${variables} variables, ${terms} terms, ${context} examples`,
    ]),
    {
      change: () =>
        app.set({ shape: shape.value, terms: null, query: null, variable: null, models: null }),
    },
  );
  const body = h("div");
  root.append(
    heading(
      "Guess a function from examples",
      "A function is an OR (the largest) of terms; a term is an AND (the smallest) of all variables, some of ",
      "them negated (1 − x). The models see examples of it, and none of its terms, and say what its value is at a ",
      "new point. They were trained on some combinations of terms and are asked about others.",
    ),
    shapes.size > 1 ? field("Functions of", shape) : "",
    body,
  );
  let bench = null;

  const shapeOf = (state) => (shapes.has(state.shape) ? state.shape : models[0].fuzzy.shape);

  function show(wanted) {
    if (bench?.shape !== wanted) {
      bench = workbench(
        app,
        models.filter(({ fuzzy }) => fuzzy.shape === wanted),
      );
      body.replaceChildren(...bench.elements);
    }
    shape.value = wanted;
  }

  function update(state) {
    show(shapeOf(state));
    bench.update(state);
  }

  function complete(state) {
    show(shapeOf(state));
    return { shape: bench.shape, ...bench.complete(state) };
  }

  return { update, complete };
}

/** All there is for models of one shape. */
function workbench(app, models) {
  const { shape, variables, terms: usualTerms } = models[0].fuzzy;
  const styles = lineStyles(models);
  const names = Object.fromEntries(models.map((model) => [model.id, shortName(model, models)]));

  const editor = termEditor(variables, (terms) => app.set({ terms: writeTerms(terms) }));
  const formula = h("p", { class: "formula" });
  const sliders = Array.from({ length: variables }, (_, i) => querySlider(i));
  const axis = choice(
    "Move along",
    sliders.map((_, i) => variableName(i)),
    (variable) => app.set({ variable }, { step: false }),
  );
  const seed = numberInput((number) => app.set({ seed: number }));
  const picked = modelChoice();
  const absent = h("div");
  const problem = h("div");
  const results = h("section", {
    class: "predictions",
    "aria-live": "polite",
    "aria-label": "Predictions",
  });
  const slice = chart("Target and predictions along one variable");
  const examples = h("div");
  const elements = [
    h(
      "div",
      { class: "fuzzy" },
      h(
        "section",
        { class: "card", "aria-label": "The function" },
        h("h2", {}, "The function"),
        editor.element,
        h("p", { class: "hint" }, "Press a variable to negate it."),
        formula,
      ),
      h(
        "section",
        { class: "card", "aria-label": "The query" },
        h("h2", {}, "The query"),
        sliders.map(({ element }) => element),
      ),
    ),
    absent,
    problem,
    results,
    h(
      "figure",
      { class: "card" },
      h("div", { class: "row spread" }, axis.element, picked.element),
      slice,
      h(
        "figcaption",
        { class: "hint" },
        "The query, moved along one variable. Click into the chart to put it there.",
      ),
    ),
    h(
      "section",
      { class: "card examples", "aria-label": "Examples in context" },
      h(
        "div",
        { class: "row spread" },
        h("h2", {}, "What the models see"),
        field("Other examples: seed", seed),
      ),
      examples,
    ),
  ];

  function querySlider(i) {
    const input = h("input", {
      type: "range",
      min: 0,
      max: 1,
      step: 0.01,
      // A slider that is dragged makes many states, none worth a step back.
      input: () =>
        app.set({ query: sliders.map((slider) => slider.input.value).join(",") }, { step: false }),
    });
    const output = h("output", {});
    const element = h("label", { class: "slider" }, h("span", {}, variableName(i)), input, output);
    return { element, input, output };
  }

  function modelChoice() {
    const boxes = models.map(({ id }) =>
      h("input", { type: "checkbox", value: id, change: choose }),
    );
    function choose(event) {
      const checked = boxes.filter((box) => box.checked).map(({ value }) => value);
      if (checked.length > MAX_MODELS) event.target.checked = false;
      else if (checked.length) app.set({ models: checked.join(",") }, { step: false });
      else event.target.checked = true; // without a model there is nothing to see
    }
    const legend = models.length > MAX_MODELS ? `Models, up to ${MAX_MODELS}` : "Models";
    const texts = models.map(({ id }) => names[id]);
    const element = h("fieldset", { class: "choice" }, segments(legend, boxes, texts));
    const update = (ids) => {
      for (const box of boxes) box.checked = ids.includes(box.value);
    };
    return { element, update };
  }

  const load = serial(async (asked) => {
    results.setAttribute("aria-busy", "true");
    if (!results.hasChildNodes()) results.replaceChildren(waiting("Asking the models…"));
    const { variable, ...request } = asked;
    try {
      const [point, line] = await Promise.all([
        post("fuzzy/predict", request),
        post("fuzzy/slice", asked),
      ]);
      problem.replaceChildren();
      formula.textContent = point.name;
      showPredictions(point, request.models);
      examples.replaceChildren(...examplesShown(point.context));
      await showSlice(line, asked, point);
    } catch (error) {
      problem.replaceChildren(failure(error));
      results.replaceChildren();
    } finally {
      results.removeAttribute("aria-busy");
    }
  });

  function showPredictions({ target, predictions, seen }, ids) {
    results.replaceChildren(
      h(
        "dl",
        {},
        h("div", { class: "target" }, h("dt", {}, "Target"), h("dd", {}, target.toFixed(2))),
        ids.map((id) =>
          h(
            "div",
            {},
            h("dt", {}, swatch({ fill: styles[id].colour }), names[id]),
            h("dd", {}, signed(predictions[id])),
            h(
              "dd",
              { class: "hint" },
              `off by ${Math.abs(predictions[id] - target).toFixed(2)}; ${SEEN[seen[id]]}`,
            ),
          ),
        ),
      ),
    );
  }

  async function showSlice({ grid, target, predictions }, { variable, query, models: ids }, point) {
    const name = variableName(variable);
    const muted = colour("--muted");
    const line = (y, label, style) => path(grid, y, style, { name: label });
    const here = (y, shade) =>
      markers([query[variable]], [y], {
        marker: { color: shade, size: 11, line: { color: colour("--surface"), width: 2 } },
        showlegend: false,
        hoverinfo: "skip",
      });
    slice.setAttribute("aria-label", `Target and predictions while ${name} goes from 0 to 1`);
    await draw(
      slice,
      [
        line(target, "target", { color: muted, width: 3, dash: "dot" }),
        ...ids.map((id) => {
          const { colour: color, dash } = styles[id];
          return line(predictions[id], names[id], { color, dash, width: 2.5 });
        }),
        here(point.target, muted),
        ...ids.map((id) => here(point.predictions[id], styles[id].colour)),
      ],
      {
        xaxis: { title: name, range: [0, 1] },
        yaxis: { title: "value", range: [-0.05, 1.05] },
        hovermode: "x unified",
      },
    );
    slice.removeAllListeners?.("plotly_click");
    slice.on?.("plotly_click", ({ points }) => {
      const there = Number(points[0].x.toFixed(2));
      const moved = query.map((value, i) => (i === variable ? there : value));
      app.set({ query: moved.join(",") });
    });
  }

  function update(state) {
    const asked = read(state);
    editor.update(asked.terms);
    sliders.forEach(({ input, output }, i) => {
      input.value = asked.query[i];
      output.textContent = asked.query[i].toFixed(2);
    });
    axis.choose(asked.variable);
    picked.update(asked.models);
    absent.replaceChildren(...absentNotice("models", absentModels(state)));
    if (document.activeElement !== seed) seed.value = asked.seed;
    load(asked);
  }

  const absentModels = (state) =>
    listed(state.models).filter((id) => models.every((model) => model.id !== id));

  /** The function, the query and the models that the address asks for. */
  function read(state) {
    const wanted = listed(state.models);
    const ids = models.map(({ id }) => id);
    const known = ids.filter((id) => wanted.includes(id));
    const query = (state.query ?? "").split(",").map(Number);
    const sound = query.length === variables && query.every((value) => value >= 0 && value <= 1);
    const variable = Number(state.variable ?? 0);
    return {
      terms: readTerms(state.terms, variables) ?? firstTerms(variables, usualTerms),
      query: state.query && sound ? query : Array(variables).fill(0.6),
      models: (known.length ? known : ids).slice(0, MAX_MODELS),
      variable: Number.isInteger(variable) && variable >= 0 && variable < variables ? variable : 0,
      seed: /^\d+$/.test(state.seed ?? "") ? Number(state.seed) : 0,
    };
  }

  function complete(state) {
    const { terms, query, models: shown, variable, seed } = read(state);
    return {
      terms: writeTerms(terms),
      query: query.join(","),
      models: [...shown, ...absentModels(state)].join(","),
      variable,
      seed,
    };
  }

  return { shape, elements, update, complete };
}
