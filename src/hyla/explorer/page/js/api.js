// What the server is asked. Every failure is an Error whose message can be shown to the visitor.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters))
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  const address = query.size ? `/api/${path}?${query}` : `/api/${path}`;
  return request(address, {});
}

export function post(path, body) {
  return request(`/api/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

async function request(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new ApiError("The server does not answer. Is `hyla explore` still running?", 0);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok || body === null)
    throw new ApiError(body?.error ?? `The server answered ${response.status}.`, response.status);
  return body;
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
