// The state of a view is in the address: `#/puzzle?seed=7&split=held-out`.

export function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path, state: Object.fromEntries(new URLSearchParams(query)) };
}

/** An address of a view; empty values are left out. */
export function address(view, state = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state))
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  // Commas and signs may stand in a fragment: rules stay readable.
  const text = query.toString().replaceAll("%2C", ",");
  return `#/${view}${text ? `?${text}` : ""}`;
}

/** Changes the address; `step` makes it one that the back button returns to. */
export function write(view, state, { step = true } = {}) {
  history[step ? "pushState" : "replaceState"](null, "", address(view, state));
}
