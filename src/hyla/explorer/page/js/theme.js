// Light or dark: as the system says, unless the visitor chose.

import { recall, remember } from "./storage.js";

const KEY = "hyla-explorer-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** Sent to the window when colours have changed, for what is drawn with resolved colours. */
export const CHANGED = "hyla-theme";

export function start(button) {
  const chosen = recall(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
  const show = () => button.setAttribute("aria-pressed", String(isDark()));
  const change = () => {
    show();
    window.dispatchEvent(new Event(CHANGED));
  };
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    remember(KEY, theme);
    change();
  });
  system.addEventListener("change", change);
  show();
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : system.matches;
}

/** The colour that a custom property such as `--ink` has now. */
export function colour(property) {
  const probe = document.createElement("span");
  probe.style.color = `var(${property})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
