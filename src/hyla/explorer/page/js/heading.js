// What stands over a view.

import { h } from "./dom.js";

/** A view's name, which takes the focus when one comes from another view, and what it is about. */
export function heading(title, ...lead) {
  return h(
    "div",
    { class: "heading" },
    h("h1", { tabindex: -1 }, title),
    h("p", { class: "lead" }, lead),
  );
}

/** A puzzle in a view that is about something else: small, with what stands over it. */
export function smallBoard(board, ...over) {
  return h("div", {}, h("div", { class: "board-head" }, over), board);
}

/** Stands in for a view that needs a model which is not there. */
export function withoutModel(root, title, task) {
  root.append(
    heading(title, "There is no model to look at."),
    h(
      "p",
      { class: "notice" },
      `This view needs a model of ${task}. Train one with `,
      h("code", {}, `hyla train ${task === "SRAVEN" ? "sraven" : "fuzzy"}`),
      " and start the explorer with its run: ",
      h("code", {}, "hyla explore RUN"),
      ".",
    ),
  );
  return { update() {} };
}
