// What the server is asked. Every failure is an Error whose message can be shown to the visitor.

import { query } from "./route.js";

export function get(path, parameters = {}) {
  const asked = query(parameters);
  return request(`/api/${path}${asked ? `?${asked}` : ""}`, {});
}

export function post(path, body) {
  return request(`/api/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

const BUSY = 503;
const MOST_TRIES = 10;

async function request(address, options) {
  let response = await ask(address, options);
  // A busy server refuses within a second and asks to come again: the visitor need not know.
  for (let tries = 1; response.status === BUSY && tries < MOST_TRIES; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    response = await ask(address, options);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok || body === null)
    throw new Error(body?.error ?? `The server answered ${response.status}.`);
  return body;
}

async function ask(address, options) {
  try {
    return await fetch(address, options);
  } catch {
    throw new Error("The server does not answer. Is `hyla explore` still running?");
  }
}

/** A function that runs `task` once at a time; of the calls that come meanwhile only the last is
 * kept. So a slider that is dragged asks as often as the server can answer, and ends up to date. */
export function serial(task) {
  let running = false;
  let next = null;
  return async function run(...call) {
    if (running) {
      next = call;
      return;
    }
    running = true;
    try {
      await task(...call);
    } finally {
      running = false;
      const pending = next;
      next = null;
      if (pending) await run(...pending);
    }
  };
}
