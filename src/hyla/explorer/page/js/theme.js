// Light or dark: as the system says, unless the visitor chose.

const KEY = "hyla-explorer-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** Sent to the window when colours have changed, for what is drawn with resolved colours. */
export const CHANGED = "hyla-theme";

export function start(button) {
  const chosen = recall();
  if (chosen) document.documentElement.dataset.theme = chosen;
  const show = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    remember(theme);
    show();
    window.dispatchEvent(new Event(CHANGED));
  });
  system.addEventListener("change", () => {
    show();
    window.dispatchEvent(new Event(CHANGED));
  });
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

// Storage may be forbidden; the choice then lasts as long as the page.
function recall() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // See above.
  }
}
