// Which view is shown, and what all views share.

import { get } from "./api.js";
import { failure, h } from "./dom.js";
import * as route from "./route.js";
import * as theme from "./theme.js";
import { tour } from "./tour.js";
import * as code from "./views/code.js";
import * as compare from "./views/compare.js";
import * as fuzzy from "./views/fuzzy.js";
import * as puzzle from "./views/puzzle.js";
import * as swap from "./views/swap.js";

const VIEWS = { puzzle, code, swap, fuzzy, compare };
const FIRST = "puzzle";

// Views of one and the same puzzle: a link between them takes along which puzzle it is.
const OF_A_PUZZLE = ["puzzle", "code", "swap"];
const OF_THE_PUZZLE = ["model", "id", "seed", "split", "permuted", "rules", "show", "answer"];

const main = document.getElementById("main");
const navigation = document.getElementById("views");
const guide = document.getElementById("guide");

class App {
  #shown = null;
  #lastStates = {};

  constructor(about) {
    this.about = about;
  }

  /** Shows what the address says. */
  follow() {
    const { view, state } = route.read();
    const name = Object.hasOwn(VIEWS, view) ? view : FIRST;
    const arrived = this.#shown !== null && this.#shown.name !== name;
    if (this.#shown?.name !== name) {
      main.replaceChildren();
      this.#shown = { name, view: VIEWS[name].mount(main, this) };
      document.title = `${VIEWS[name].title} · hyla explorer`;
    }
    this.#show(state);
    // After a step to another view, reading goes on at its heading.
    if (arrived) main.querySelector("h1")?.focus();
  }

  /** Changes the state of the view that is shown, and so the address. */
  set(changes, { step = true } = {}) {
    const state = { ...this.state, ...changes };
    route.write(this.#shown.name, state, { step });
    this.#show(route.read().state);
  }

  #show(asked) {
    const { name, view } = this.#shown;
    // What the address leaves open depends on the models that are here: it is written down, so that
    // a link shows the same elsewhere.
    const complete = { ...asked, ...view.complete?.(asked) };
    const changed = route.address(name, complete) !== route.address(name, asked);
    if (changed) route.write(name, complete, { step: false });
    const state = changed ? route.read().state : asked;
    this.state = state;
    this.#lastStates[name] = state;
    navigation.replaceChildren(...Object.keys(VIEWS).map((name) => this.#link(name)));
    guide.replaceChildren(...[tour(name, state, FIRST)].filter(Boolean));
    view.update(state);
  }

  #link(name) {
    const current = name === this.#shown.name;
    return h(
      "a",
      { href: this.address(name), "aria-current": current ? "page" : null },
      VIEWS[name].title,
    );
  }

  /** The address of a view, with the puzzle that is shown now or else what it showed last. */
  address(name) {
    const carried = OF_A_PUZZLE.includes(name) && OF_A_PUZZLE.includes(this.#shown.name);
    const puzzle = carried
      ? Object.fromEntries(OF_THE_PUZZLE.map((key) => [key, this.state[key]]))
      : {};
    return route.address(name, { ...this.#lastStates[name], ...puzzle, tour: null });
  }
}

async function start() {
  theme.start(document.getElementById("theme"));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment is taken: it holds the state
    main.focus();
  });
  try {
    const about = await get("about");
    document.getElementById("version").textContent = `hyla ${about.version}`;
    const app = new App(about);
    window.addEventListener("hashchange", () => app.follow());
    app.follow();
  } catch (error) {
    main.replaceChildren(failure(error));
    throw error;
  }
}

start();
