// What this browser keeps. Storage may be forbidden or full: then it lasts as long as the page.

export function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // See above.
  }
}
