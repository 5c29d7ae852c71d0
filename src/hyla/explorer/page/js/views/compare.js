// Runs of the folder beside each other: their curves, and how well they do on what they never saw.

import { get, serial } from "../api.js";
import { chart, draw, markers, path } from "../charts.js";
import {
  absentNotice,
  caption,
  details,
  failure,
  field,
  h,
  scrolled,
  select,
  signed,
  swatch,
  waiting,
} from "../dom.js";
import { heading } from "../heading.js";
import { lineStyles } from "../palette.js";
import { listed } from "../route.js";

export const title = "Compare";

const MAX_CHOSEN = 8;
const NO_RUNS = "none";
const [KNOWN, UNSEEN] = ["test/", "ood/"];
const LEAST_R2 = -1;
const UNNAMED = { hoverinfo: "skip", showlegend: false };
const HEADLINES = ["accuracy", "r2", "loss"];

export function mount(root, app) {
  const body = h("div", {}, waiting("Reading the runs…"));
  root.append(
    heading(
      "Compare runs",
      "What was trained here, side by side: metrics along training, and how well a run does on the ",
      "combinations it was trained on (ID) against combinations it never saw (OOD).",
    ),
    body,
  );
  let page = null;
  const found = get("runs").then(
    (answer) => {
      page = runsPage(app, answer);
      body.replaceChildren(...page.elements);
    },
    (error) => body.replaceChildren(failure(error)),
  );
  return {
    update: (state) => {
      found.then(() => page?.update(state));
    },
  };
}

function runsPage(app, { runs, skipped }) {
  if (!runs.length) return { elements: [emptyStore(), skippedRuns(skipped)], update() {} };

  const curves = new Map();
  const boxes = new Map(
    runs.map(({ id }) => {
      const label = `Compare ${id}`;
      return [id, h("input", { type: "checkbox", value: id, "aria-label": label, change: choose })];
    }),
  );
  const metric = select([], {
    name: "metric",
    change: () => app.set({ metric: metric.value }, { step: false }),
  });
  const curveChart = chart("Curves of the chosen runs");
  const scatter = chart("ID against OOD, by run");
  const absent = h("div");
  const problem = h("div");
  const swatches = new Map(runs.map(({ id }) => [id, swatch({ fill: "none" })]));

  function choose(event) {
    const chosen = [...boxes.values()].filter(({ checked }) => checked).map(({ value }) => value);
    if (chosen.length > MAX_CHOSEN) event.target.checked = false;
    else app.set({ runs: chosen.join(",") || NO_RUNS }, { step: false });
  }

  const elements = [
    runTable(runs, boxes, swatches),
    h("p", { class: "hint" }, `Colours as in the charts; up to ${MAX_CHOSEN} runs at once.`),
    absent,
    problem,
    h(
      "div",
      { class: "map" },
      h(
        "figure",
        { class: "card" },
        h(
          "div",
          { class: "row spread" },
          caption("Curves", "; bands from the least to the greatest member"),
          field("Metric", metric),
        ),
        curveChart,
      ),
      h(
        "figure",
        { class: "card" },
        caption("ID against OOD", ", at the end; on the dashed line nothing is lost"),
        scatter,
      ),
    ),
    skippedRuns(skipped),
  ];

  const load = serial(async (state) => {
    const chosen = chosenRuns(state, runs);
    const styles = new Map(Object.entries(lineStyles(chosen)));
    for (const [id, box] of boxes) box.checked = styles.has(id);
    for (const [id, spot] of swatches)
      spot.firstChild.setAttribute("fill", styles.get(id)?.colour ?? "none");
    absent.replaceChildren(...absentNotice("runs", absentRuns(state, runs)));
    try {
      await Promise.all(
        chosen
          .filter(({ id }) => !curves.has(id))
          .map(async ({ id }) => curves.set(id, (await get("curves", { run: id })).series)),
      );
      problem.replaceChildren();
    } catch (error) {
      problem.replaceChildren(failure(error));
    }
    const drawn = chosen.filter(({ id }) => curves.has(id));
    const shown = showMetrics(state, drawn);
    // Which runs are there is known only now; a link is to name those that are shown.
    const open = {
      ...(!state.runs && { runs: chosen.map(({ id }) => id).join(",") || NO_RUNS }),
      ...(!state.metric && shown && { metric: shown }),
    };
    if (state === app.state && Object.keys(open).length) app.set(open, { step: false });
    await drawCurves(drawn, shown, styles);
    await drawScatter(chosen, shown, styles);
  });

  function showMetrics(state, drawn) {
    const names = [...new Set(drawn.flatMap(({ id }) => Object.keys(curves.get(id))))].sort();
    const first = HEADLINES.map((name) => UNSEEN + name).find((name) => names.includes(name));
    metric.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    const shown = names.includes(state.metric) ? state.metric : (first ?? names[0]);
    metric.value = shown ?? "";
    return shown;
  }

  async function drawCurves(drawn, shown, styles) {
    const traces = drawn.flatMap(({ id, name }) => {
      const series = curves.get(id)[shown];
      return series ? band(series, name, styles.get(id)) : [];
    });
    curveChart.setAttribute("aria-label", `${shown} along training of ${drawn.length} runs`);
    await draw(curveChart, traces, {
      xaxis: { title: "step" },
      yaxis: { title: shown, ...clipped(shown, traces) },
      showlegend: false,
    });
  }

  async function drawScatter(chosen, shown, styles) {
    // The metric that is shown, if it has two sides; else the first that has.
    const hasBoth = ({ metrics }, name) => KNOWN + name in metrics && UNSEEN + name in metrics;
    const kinds = [shown?.split("/")[1], ...HEADLINES];
    const kind = kinds.find((name) => chosen.some((run) => hasBoth(run, name)));
    const points = chosen.filter((run) => hasBoth(run, kind));
    const place = (value) => (kind === "r2" ? Math.max(LEAST_R2, value) : value);
    const values = points
      .flatMap(({ metrics }) => [metrics[KNOWN + kind], metrics[UNSEEN + kind]])
      .map(place);
    const ends = [Math.min(0, ...values), Math.max(kind === "loss" ? 0 : 1, ...values)];
    const diagonal = path(ends, ends, { color: "#7B8794", dash: "dash", width: 1.5 }, UNNAMED);
    scatter.setAttribute(
      "aria-label",
      points
        .map(({ name, metrics }) => {
          const [known, unseen] = [KNOWN, UNSEEN].map((side) => signed(metrics[side + kind]));
          return `${name}: ID ${known}, OOD ${unseen}`;
        })
        .join("; ") || "No chosen run has both",
    );
    await draw(
      scatter,
      [
        diagonal,
        ...points.map(({ id, name, metrics }) => {
          const [known, unseen] = [metrics[KNOWN + kind], metrics[UNSEEN + kind]];
          return markers([place(known)], [place(unseen)], {
            name,
            text: `ID ${signed(known, 3)}, OOD ${signed(unseen, 3)}`,
            hoverinfo: "name+text",
            marker: { size: 14, color: styles.get(id).colour },
          });
        }),
      ],
      {
        xaxis: { title: `ID ${kind ?? ""}`, range: padded(ends) },
        yaxis: { title: `OOD ${kind ?? ""}`, range: padded(ends) },
        showlegend: false,
      },
    );
  }

  return { elements, update: load };
}

/** Those that the address names; at first the runs of the first task. */
function chosenRuns(state, runs) {
  const wanted = listed(state.runs);
  const named = runs.filter(({ id }) => wanted.includes(id));
  const first = runs.filter(({ task }) => task === runs[0].task);
  return (state.runs ? named : first).slice(0, MAX_CHOSEN);
}

/** Those that it names and the folder does not have. */
function absentRuns({ runs: named }, runs) {
  return listed(named).filter((id) => id !== NO_RUNS && runs.every((run) => run.id !== id));
}

function runTable(runs, boxes, swatches) {
  const headline = ({ metrics }, side) => {
    const name = headlineName(metrics);
    return name && side + name in metrics ? signed(metrics[side + name], 3) : "–";
  };
  const headings = [
    h("th", { scope: "col" }, h("span", { class: "hidden" }, "Compare")),
    ["Run", "Task", "Attention", "Members", "Steps", "Metric", "ID", "OOD", "Device"].map((name) =>
      h("th", { scope: "col" }, name),
    ),
  ];
  const cells = (run) => [
    run.task,
    run.attention,
    run.members,
    [...(run.finished ? [] : [run.step]), run.steps]
      .map((step) => step.toLocaleString("en"))
      .join(" / "),
    headlineName(run.metrics) ?? "–",
    headline(run, KNOWN),
    headline(run, UNSEEN),
    run.device ?? "–",
  ];
  return scrolled(
    "Runs",
    h(
      "table",
      { class: "runs" },
      h("thead", {}, h("tr", {}, headings)),
      h(
        "tbody",
        {},
        runs.map((run) =>
          h(
            "tr",
            {},
            h("td", {}, boxes.get(run.id)),
            h(
              "th",
              { scope: "row" },
              swatches.get(run.id),
              run.name,
              !run.finished && h("span", { class: "badge" }, "unfinished"),
            ),
            cells(run).map((value) => h("td", {}, String(value))),
          ),
        ),
      ),
    ),
  );
}

const headlineName = (metrics) =>
  HEADLINES.find((name) => KNOWN + name in metrics || UNSEEN + name in metrics);

function emptyStore() {
  return h(
    "p",
    { class: "notice" },
    "There are no runs in the folder yet. ",
    h("code", {}, "hyla demo"),
    " trains three small ones in minutes; ",
    h("code", {}, "hyla explore --root FOLDER"),
    " shows those of another folder.",
  );
}

function skippedRuns(skipped) {
  if (!skipped.length) return "";
  return details(
    `${skipped.length} folders could not be read`,
    h(
      "ul",
      {},
      skipped.map(({ id, reason }) => h("li", {}, h("code", {}, id), `: ${reason}`)),
    ),
  );
}

/** A line with the band of its members behind it. */
function band({ steps, mean, low, high }, name, { colour, dash }) {
  const edge = { width: 0 };
  return [
    path(steps, low, edge, UNNAMED),
    path(steps, high, edge, { ...UNNAMED, fill: "tonexty", fillcolor: `${colour}33` }),
    path(steps, mean, { color: colour, dash, width: 2.5 }, { name }),
  ];
}

/** R² has no lower end: a first step far below would press the rest of a curve flat. */
function clipped(metric, traces) {
  const values = traces.flatMap(({ y }) => y).filter((value) => value !== null);
  if (!metric?.endsWith("/r2") || !values.some((value) => value < LEAST_R2)) return {};
  const range = padded([LEAST_R2, Math.max(0, ...values)]);
  return { title: `${metric} (cut at ${signed(LEAST_R2, 0)})`, range };
}

const padded = ([low, high]) => [low - 0.05 * (high - low), high + 0.05 * (high - low)];
