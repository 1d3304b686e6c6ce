// Requests: one of a kind at a time, repeated while the server is busy, errors as one sentence.

const running = new Map();
let busy = 0;
const watchers = new Set();

export const onBusy = (watch) => watchers.add(watch);

function count(step) {
  busy += step;
  for (const watch of watchers) watch(busy);
}

// A newer request of the same kind aborts the older one; the server then stops its work.
export function only(kind) {
  running.get(kind)?.abort();
  const control = new AbortController();
  running.set(kind, control);
  return control.signal;
}

export async function ask(path, body, signal, raw = false) {
  const options = body === undefined ? { signal }
    : body instanceof Blob ? { method: "POST", body, signal, headers: { "content-type": "application/octet-stream" } }
    : { method: "POST", body: JSON.stringify(body), signal, headers: { "content-type": "application/json" } };
  count(1);
  try {
    for (let attempt = 0; ; attempt++) {
      const answer = await fetch(path, options).catch((problem) => {
        if (problem.name === "AbortError") throw problem;
        throw new Error("the playground's server does not answer; is `vitreous serve` still running?");
      });
      if (answer.status === 429 && attempt < 8) {
        await new Promise((go) => setTimeout(go, 400 * (attempt + 1)));
        signal?.throwIfAborted();
        continue;
      }
      if (!answer.ok) {
        const reply = await answer.json().catch(() => ({}));
        throw Object.assign(new Error(reply.error ?? `the server answered ${answer.status}`), { status: answer.status });
      }
      return raw ? answer : answer.json();
    }
  } finally {
    count(-1);
  }
}

export const query = (path, values) => `${path}?${new URLSearchParams(values)}`;

export const left = (problem) => problem?.name === "AbortError";
