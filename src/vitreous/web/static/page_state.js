// The choices on the page, the link that restores them, the data from the server, and events.

export const state = {
  model: "scenes", image: "pair-1-6", classes: [], methods: ["temper", "decompx+skipplus", "genatt", "rollout"],
  mainMethod: 0, // index of the method whose map is shown large
  question: "probability", scale: "own", opacity: 85, showEvidence: true, view: "map", removed: new Set(),
  comparedMethods: [0, 3], curveMode: "deletion", curveStep: 0, layerMethod: "", startLayer: null,
};

// Parameters of the link, in their order, with the field and the type of each.
const LINK_FIELDS = {
  model: ["model", String], image: ["image", String], lead: ["mainMethod", Number], question: ["question", String], scale: ["scale", String],
  opacity: ["opacity", Number], view: ["view", String], mode: ["curveMode", String], step: ["curveStep", Number], film: ["layerMethod", String],
};
const CHOICES = { scale: ["own", "method", "all"], curveMode: ["deletion", "insertion"], view: ["map", "image"], question: ["probability", "logit", "margin"] };

export function writeLink() {
  const link = new URLSearchParams();
  for (const [key, [field]] of Object.entries(LINK_FIELDS)) if (state[field] !== "") link.set(key, state[field]);
  link.set("classes", state.classes.join("."));
  for (const method of state.methods) link.append("method", method);
  link.set("rivals", state.comparedMethods.join("."));
  link.set("truth", Number(state.showEvidence));
  if (state.startLayer !== null) link.set("start", state.startLayer);
  if (state.removed.size) link.set("removed", encodePatches(state.removed, countPatches()));
  return link.toString();
}

// Set the state from a link; return whether it has parameters.
export function restoreLink(fragment) {
  const link = new URLSearchParams(fragment.replace(/^#/, ""));
  if (![...link.keys()].length) return false;
  for (const [key, [field, convert]] of Object.entries(LINK_FIELDS)) {
    if (link.has(key) && !(convert === Number && !Number.isFinite(Number(link.get(key))))) state[field] = convert(link.get(key));
  }
  const readIndices = (key) => (link.get(key) ?? "").split(".").filter((text) => /^\d+$/.test(text)).map(Number);
  if (link.has("classes")) state.classes = readIndices("classes").slice(0, 2);
  if (link.has("method")) state.methods = [...new Set(link.getAll("method"))].slice(0, 6);
  if (readIndices("rivals").length === 2) state.comparedMethods = readIndices("rivals");
  if (link.has("truth")) state.showEvidence = link.get("truth") === "1";
  if (/^\d+$/.test(link.get("start") ?? "")) state.startLayer = Number(link.get("start"));
  state.removed = decodePatches(link.get("removed") ?? "");
  for (const [field, values] of Object.entries(CHOICES)) if (!values.includes(state[field])) state[field] = values[0];
  state.opacity = Math.min(Math.max(state.opacity, 0), 100);
  state.curveStep = Math.max(Math.trunc(state.curveStep), 0);
  clampMethodIndices();
  return true;
}

export function clampMethodIndices() {
  const last = state.methods.length - 1;
  state.mainMethod = Math.min(Math.max(Math.trunc(state.mainMethod) || 0, 0), last);
  state.comparedMethods = state.comparedMethods.map((index) => Math.min(index, last));
}

// A set of patches as the base64 of one bit per patch.
function encodePatches(chosen, count) {
  const bytes = new Uint8Array(Math.ceil(count / 8));
  for (const patch of chosen) bytes[patch >> 3] |= 1 << (patch & 7);
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function decodePatches(text) {
  const chosen = new Set();
  try {
    const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    for (let i = 0; i < bytes.length * 8; i++) if ((bytes.charCodeAt(i >> 3) >> (i & 7)) & 1) chosen.add(i);
  } catch { /* a truncated link: nothing is removed */ }
  return chosen;
}

// ── data from the server ────────────────────────────────────────────────────────────────────────

export const data = {
  about: null, model: null, bitmap: null, evidenceClasses: [], crop: null, caution: "", // `bitmap`: the input of the model
  prediction: null, reducedPrediction: null, // for the whole image, and without the removed patches
  maps: new Map(), curves: new Map(), layers: null, // maps and curves by method
  isReady: false, cursorPatch: null, decisivePatches: new Set(),
};

export const countPatches = () => (data.model ? data.model.grid[0] * data.model.grid[1] : 0);
export const getClassName = (index) => data.model?.classes[index] ?? `class ${index}`;
export const findMethod = (spec) => data.about.methods.find((method) => spec.toLowerCase().split(/[(@+]/)[0] === method.name);

// ── events ──────────────────────────────────────────────────────────────────────────────────────

const listeners = new Map();

// `events`: names separated by spaces.
export function listen(events, listener) {
  for (const event of events.split(" ")) listeners.set(event, [...(listeners.get(event) ?? []), listener]);
}

export function emit(event) {
  for (const listener of listeners.get(event) ?? []) listener();
}

export function setCursor(patch) {
  if (patch === data.cursorPatch) return;
  data.cursorPatch = patch;
  emit("cursor");
}
