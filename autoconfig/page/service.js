// Asking the service. The key lives in this tab's session only.

const KEY = "autoconfig-key";

/** An RFC 9457 problem document. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `status ${status}`);
    this.status = status;
    this.field = body.field || null;
    this.given = body.given || null;
    this.nearest = body.nearest || null;
    this.allowed = body.allowed || null;
  }
}

export const setKey = (key) => sessionStorage.setItem(KEY, key);

function headers(more) {
  const key = sessionStorage.getItem(KEY);
  return { ...more, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function once(method, path, { body, signal, more } = {}) {
  try {
    return await fetch(path, { method, signal, headers: headers({ ...(body ? { "Content-Type": "application/json" } : {}), ...more }),
      body: body ? JSON.stringify(body) : undefined });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "the service does not answer" });
  }
}

/** Seconds after which a service that is busy wants to be asked again, if that is soon; else 0. */
function soon(answer) {
  const seconds = [429, 503].includes(answer.status) ? Number(answer.headers.get("Retry-After")) : 0;
  return seconds <= 3 ? seconds : 0;
}

async function call(method, path, options = {}) {
  let answer = await once(method, path, options);
  for (let attempt = 0; attempt < 3 && soon(answer); attempt += 1) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * soon(answer) * (1 + Math.random() / 4)));
    answer = await once(method, path, options);
  }
  if (answer.ok) return answer;
  let said = {};
  try {
    said = await answer.json();
  } catch {
    said = { detail: `the service answered ${answer.status}` };
  }
  throw new Problem(answer.status, said);
}

export const get = async (path, options) => (await call("GET", path, options)).json();
export const post = async (path, body, options) => (await call("POST", path, { ...options, body })).json();
export const remove = async (path) => (await call("DELETE", path)).json();

/** Every entry of a paged list, up to `most` pages. */
export async function all(name, most = 10) {
  const found = [];
  let next = "0";
  for (let page = 0; page < most && next !== null; page += 1) {
    const answer = await get(`/v1/${name}?limit=500&cursor=${next}`);
    found.push(...answer[name]);
    next = answer.next;
  }
  return found;
}

/** Events of a search, each given to `tell({id, kind, data})`, until it is over; goes on after an interruption. */
export async function follow(search, tell, signal) {
  let last = "0";
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    try {
      const answer = await call("GET", `/v1/searches/${search}/events`, { signal, more: { "Last-Event-ID": last } });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const event = parsed(part);
          if (event) {
            last = event.id;
            wait = 500;
            tell(event);
          }
        }
      }
    } catch (error) {
      if (error.name === "AbortError" || (error instanceof Problem && error.status)) throw error;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
}

function parsed(text) {
  const fields = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  return fields.data ? { id: fields.id, kind: fields.event, data: JSON.parse(fields.data) } : null;
}
