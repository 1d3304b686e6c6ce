// Everything that is on the page, and the link that restores it.

export const state = {
  model: "scenes", image: "pair-1-6", classes: [], methods: ["temper", "decompx+skipplus", "genatt", "rollout"], lead: 0,
  question: "probability", scale: "own", opacity: 85, truth: true, view: "map", removed: new Set(),
  rivals: [0, 3], mode: "deletion", step: 0, film: "", start: null,
};

const PLAIN = { model: String, image: String, lead: Number, question: String, scale: String, opacity: Number, view: String,
  mode: String, step: Number, film: String };

export function written(patches) {
  const link = new URLSearchParams();
  for (const key of Object.keys(PLAIN)) if (state[key] !== "") link.set(key, state[key]);
  link.set("classes", state.classes.join("."));
  for (const method of state.methods) link.append("method", method);
  link.set("rivals", state.rivals.join("."));
  link.set("truth", Number(state.truth));
  if (state.start !== null) link.set("start", state.start);
  if (state.removed.size) link.set("removed", bits(state.removed, patches));
  return link.toString();
}

export function restore(fragment) {
  const link = new URLSearchParams(fragment.replace(/^#/, ""));
  if (![...link.keys()].length) return false;
  if (link.has("picture")) link.set("image", link.get("picture")); // links of earlier versions
  if (link.get("view") === "picture") link.set("view", "image");
  for (const [key, kind] of Object.entries(PLAIN)) {
    if (link.has(key) && !(kind === Number && !Number.isFinite(Number(link.get(key))))) state[key] = kind(link.get(key));
  }
  const list = (key) => (link.get(key) ?? "").split(".").filter((x) => /^\d+$/.test(x)).map(Number);
  if (link.has("classes")) state.classes = list("classes").slice(0, 2);
  if (link.has("method")) state.methods = [...new Set(link.getAll("method"))].slice(0, 6);
  if (list("rivals").length === 2) state.rivals = list("rivals");
  if (link.has("truth")) state.truth = link.get("truth") === "1";
  if (/^\d+$/.test(link.get("start") ?? "")) state.start = Number(link.get("start"));
  state.removed = unbits(link.get("removed") ?? "");
  if (!["own", "method", "all"].includes(state.scale)) state.scale = "own";
  if (!["deletion", "insertion"].includes(state.mode)) state.mode = "deletion";
  if (!["map", "image"].includes(state.view)) state.view = "map";
  if (!["probability", "logit", "margin"].includes(state.question)) state.question = "probability";
  state.opacity = Math.min(Math.max(state.opacity, 0), 100);
  clamp();
  return true;
}

// Keep indices of methods within the list.
export function clamp() {
  const last = state.methods.length - 1;
  state.lead = Math.min(Math.max(Math.trunc(state.lead) || 0, 0), last);
  state.rivals = state.rivals.map((one) => Math.min(one, last));
}

function bits(chosen, patches) {
  const bytes = new Uint8Array(Math.ceil(patches / 8));
  for (const patch of chosen) bytes[patch >> 3] |= 1 << (patch & 7);
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function unbits(text) {
  const found = new Set();
  try {
    const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    for (let i = 0; i < bytes.length * 8; i++) if ((bytes.charCodeAt(i >> 3) >> (i & 7)) & 1) found.add(i);
  } catch { /* a truncated link: nothing is removed */ }
  return found;
}

// ── data from the server, and events ────────────────────────────────────────────────────────────

export const world = {
  about: null, facts: null, image: null, known: [], base: null, said: null, crop: null, cursor: null,
  maps: new Map(), curves: new Map(), film: null, here: false,
};

const listeners = new Map();

export function on(kinds, listener) {
  for (const kind of kinds.split(" ")) listeners.set(kind, [...(listeners.get(kind) ?? []), listener]);
}

export function emit(kind) {
  for (const listener of listeners.get(kind) ?? []) listener();
}

export const patches = () => (world.facts ? world.facts.grid[0] * world.facts.grid[1] : 0);
export const className = (index) => world.facts?.classes[index] ?? `class ${index}`;
export const found = (method) => world.maps.get(method);
export const facts = (spec) => world.about.methods.find((m) => spec.toLowerCase().split(/[(@+]/)[0] === m.name);
