// The result in words: how few patches the prediction depends on, and the prediction without them.

import { $, create, fill } from "./elements.js";
import { formatCount, formatPercent } from "./formatting.js";
import { setRemoved } from "./large_image.js";
import { countPatches, data, getClassName, listen, state } from "./page_state.js";

export function start() {
  listen("loaded classes maps curves appearance removed", draw);
}

function draw() {
  const method = state.methods[state.mainMethod], curve = data.curves.get(method), error = data.maps.get(method)?.error, [target] = state.classes;
  data.decisivePatches = new Set();
  if (!data.isReady) return fill($("result-summary"));
  if (error) return fill($("result-summary"), create("p", { class: "soft" }, "There is no map to rank patches by: ", error));
  if (curve?.target !== target) return fill($("result-summary"), create("p", { class: "soft" }, "Removing patches to see which matter…"));
  const bold = (text) => create("strong", {}, text), boldName = () => bold(getClassName(target));
  const initial = curve.deletion[0], isPredicted = initial.top[0].index === target, half = initial.probability / 2;
  const decisive = curve.deletion.find((point) => point.count && point.top[0].index !== target && point.probability <= half);
  const sufficient = curve.insertion.find((point) => point.count && point.top[0].index === target && point.probability >= half);
  const lines = [];
  if (!decisive) {
    lines.push(create("p", {}, "Removing the patches that this map ranks first does not lower ", boldName(), ": the map misses what the model uses."));
  } else {
    data.decisivePatches = new Set(curve.order.slice(0, decisive.count));
    lines.push(create("p", {}, isPredicted ? "The prediction depends on " : "This class depends on ", bold(formatCount(decisive.count, "patch")), ` of ${countPatches()}, outlined in the image. Without them `,
      ...(isPredicted ? ["the model predicts ", bold(decisive.top[0].name), ` (${formatPercent(decisive.top[0].probability)}), and `] : []),
      boldName(), ` falls from ${formatPercent(initial.probability)} to ${formatPercent(decisive.probability)}.`));
  }
  if (sufficient) lines.push(create("p", {}, "With only the ", bold(sufficient.count === 1 ? "one patch" : formatCount(sufficient.count, "patch")), " ranked highest, it already predicts ", boldName(), ` (${formatPercent(sufficient.probability)}).`));
  const remaining = sufficient && new Set(curve.order.slice(sufficient.count));
  fill($("result-summary"), ...lines,
    create("div", { class: "buttons" }, decisive && createToggle("Remove them", "Restore them", data.decisivePatches), sufficient && createToggle("Keep only the top patches", "Restore all", remaining)),
    create("p", { class: "soft small" }, "Patches are ranked by ", create("code", {}, curve.method), ". Their tokens are removed from the input; nothing is painted over."));
}

// A button that removes these patches only, or restores all while they are removed.
function createToggle(removeLabel, restoreLabel, patches) {
  const isPressed = () => patches.size === state.removed.size && [...patches].every((patch) => state.removed.has(patch));
  return create("button", { type: "button", "data-key": removeLabel, "aria-pressed": String(isPressed()), onclick: () => setRemoved(isPressed() ? new Set() : patches) },
    isPressed() ? restoreLabel : removeLabel);
}
