// Requests to the server: repeated while it is busy, aborted by newer ones; errors have one sentence.

const controllers = new Map();
const busyListeners = new Set();
let pending = 0;

// `listener` gets the number of pending requests.
export const listenToBusy = (listener) => busyListeners.add(listener);

function addPending(change) {
  pending += change;
  for (const listener of busyListeners) listener(pending);
}

// Abort the older request of a kind, whose work the server then stops; return the signal for a new one.
export function abortPrevious(kind) {
  controllers.get(kind)?.abort();
  const controller = new AbortController();
  controllers.set(kind, controller);
  return controller.signal;
}

export const isAborted = (problem) => problem?.name === "AbortError";

export const addQuery = (path, values) => (values ? `${path}?${new URLSearchParams(values)}` : path);

async function send(path, options) {
  addPending(1);
  try {
    for (let attempt = 0; ; attempt++) {
      const response = await fetch(path, options).catch((problem) => {
        if (isAborted(problem)) throw problem;
        throw new Error("the playground's server does not answer; is `vitreous serve` still running?");
      });
      if (response.status === 429 && attempt < 8) {
        await new Promise((resolve) => setTimeout(resolve, 400 * (attempt + 1)));
        options.signal?.throwIfAborted();
        continue;
      }
      if (!response.ok) {
        const reply = await response.json().catch(() => ({}));
        throw Object.assign(new Error(reply.error ?? `the server answered ${response.status}`), { status: response.status });
      }
      return response;
    }
  } finally {
    addPending(-1);
  }
}

const post = (path, body, type, signal) => send(path, { method: "POST", body, signal, headers: { "content-type": type } });

export const getJson = async (path, values, signal) => (await send(addQuery(path, values), { signal })).json();

export const postJson = async (path, body, signal) => (await post(path, JSON.stringify(body), "application/json", signal)).json();

export const downloadFile = async (path, body, signal) => (await post(path, JSON.stringify(body), "application/json", signal)).blob();

// Upload an image; return its name.
export const uploadImage = async (file, signal) => (await (await post("/api/images", file, "application/octet-stream", signal)).json()).image;

// The part of an image that the model's preprocessing keeps.
export async function getModelInput(model, image, signal) {
  const response = await send(addQuery("/api/preprocessed", { model, image }), { signal });
  return createImageBitmap(await response.blob());
}
