// Charts by plotly, which is large and so loaded with the first of them. Lines and points only: its
// WebGL traces would need eval, its heat maps inline styles, and the page allows neither.

import { h } from "./dom.js";
import { CHANGED, colour } from "./theme.js";

let loading = null;
const drawn = new Map();

function plotly() {
  loading ??= load().catch((error) => {
    loading = null; // the next chart tries again
    throw error;
  });
  return loading;
}

async function load() {
  const script = h("script", { src: "/static/plotly.min.js" });
  const loaded = new Promise((resolve, reject) => {
    script.addEventListener("load", resolve);
    script.addEventListener("error", () =>
      reject(new Error("plotly.js could not be loaded; reload the page to try again.")),
    );
  });
  // As it loads, its library of maps injects a style sheet, which the content security policy would
  // refuse aloud. There are no maps here: what it makes meanwhile is an element without effect.
  const { createElement } = document;
  document.createElement = (tag, options) =>
    createElement.call(document, tag === "style" ? "noscript" : tag, options);
  document.head.append(script);
  await loaded.finally(() => {
    delete document.createElement;
  });
  return window.Plotly;
}

/** A place for a chart, described in words for who does not see it. */
export function chart(description, attributes = {}) {
  return h("div", { class: "chart", role: "img", "aria-label": description, ...attributes });
}

/** Points, and a line, as plotly takes them. */
export const markers = (x, y, more) => ({ type: "scatter", mode: "markers", x, y, ...more });
export const path = (x, y, line, more) => ({ type: "scatter", mode: "lines", x, y, line, ...more });

/** Draws into a place that `chart` made, or draws anew. */
export async function draw(place, traces, layout = {}) {
  const library = await plotly();
  if (!place.isConnected) return; // the visitor went on
  forgetGone(library);
  drawn.set(place, { traces, layout });
  await library.react(place, traces, withTheme(layout), {
    displayModeBar: false,
    responsive: true,
  });
}

window.addEventListener(CHANGED, () => {
  for (const [place, { traces, layout }] of drawn)
    if (place.isConnected) draw(place, traces, layout);
});

/** Lets go of charts that were taken off the page: each listens to the window's size. */
function forgetGone(library) {
  for (const place of drawn.keys())
    if (!place.isConnected) {
      library.purge(place);
      drawn.delete(place);
    }
}

function withTheme(layout) {
  const [ink, muted, line] = ["--ink", "--muted", "--line"].map(colour);
  const family = getComputedStyle(document.body).fontFamily;
  const axis = (given = {}) => ({
    gridcolor: line,
    zerolinecolor: line,
    linecolor: line,
    tickfont: { color: muted },
    ...given,
    title: { text: given.title, font: { color: ink, size: 14 }, standoff: 10 },
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family, size: 13, color: ink },
    margin: { l: 60, r: 14, t: 14, b: 52 },
    hoverlabel: { font: { family } },
    dragmode: false,
    showlegend: true,
    legend: { orientation: "h", y: -0.2, x: 0, font: { color: ink } },
    ...layout,
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
  };
}
