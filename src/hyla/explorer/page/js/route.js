// The state of a view is in the address: `#/puzzle?seed=7&split=held-out`.

export function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path, state: Object.fromEntries(new URLSearchParams(query)) };
}

/** What follows the question mark of an address; empty values are left out. */
export function query(values) {
  const isThere = ([, value]) => value !== null && value !== undefined && value !== "";
  return new URLSearchParams(Object.entries(values).filter(isThere)).toString();
}

/** The parts of a value that lists several. */
export const listed = (text) => (text ?? "").split(",").filter(Boolean);

/** An address of a view. */
export function address(view, state = {}) {
  // Commas and signs may stand in a fragment: rules stay readable.
  const text = query(state).replaceAll("%2C", ",");
  return `#/${view}${text ? `?${text}` : ""}`;
}

/** Changes the address; `step` makes it one that the back button returns to. */
export function write(view, state, { step = true } = {}) {
  history[step ? "pushState" : "replaceState"](null, "", address(view, state));
}
