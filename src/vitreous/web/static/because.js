// The result in words: how few patches the prediction depends on, and the prediction without them.

import { $, el, fill, percent, plural } from "./dom.js";
import { remove } from "./stage.js";
import { className, on, patches, state, world } from "./state.js";

export function start() {
  on("subject classes maps curves look removed", tell);
}

const curve = () => world.curves.get(state.methods[state.lead]);

function tell() {
  const found = curve(), target = state.classes[0], failed = world.maps.get(state.methods[state.lead])?.error;
  world.decisive = new Set();
  if (world.here && failed) return fill($("because"), el("p", { class: "soft" }, "There is no map to rank patches by: ", failed));
  if (!world.here || !found || found.target !== target) return fill($("because"), world.here && el("p", { class: "soft" }, "Removing patches to see which matter…"));
  const bold = (...words) => el("strong", {}, ...words), name = () => bold(className(target)), begin = found.deletion[0];
  const first = begin.top[0].index === target, half = begin.probability / 2;
  const end = found.deletion.find((step) => step.count && step.top[0].index !== target && step.probability <= half);
  const enough = found.insertion.find((step) => step.count && step.top[0].index === target && step.probability >= half);
  const lines = [];
  if (!end) {
    lines.push(el("p", {}, "Removing the patches that this map ranks first does not lower ", name(), ": the map misses what the model uses."));
  } else {
    world.decisive = new Set(found.order.slice(0, end.count));
    const falls = [name(), ` falls from ${percent(begin.probability)} to ${percent(end.probability)}.`];
    lines.push(el("p", {}, first ? "The prediction depends on " : "This class depends on ", bold(plural(end.count, "patch")), ` of ${patches()}, outlined in the image. Without them `,
      ...(first ? ["the model predicts ", bold(end.top[0].name), ` (${percent(end.top[0].probability)}), and `] : []), ...falls));
  }
  if (enough) lines.push(el("p", {}, "With only the ", bold(enough.count === 1 ? "one patch" : plural(enough.count, "patch")), " ranked highest, it already predicts ", name(), ` (${percent(enough.probability)}).`));
  const alone = enough && new Set(found.order.slice(enough.count));
  const pressed = (chosen) => chosen && chosen.size === state.removed.size && [...chosen].every((one) => state.removed.has(one));
  const button = (words, back, chosen) => el("button", { type: "button", "data-key": words, "aria-pressed": String(pressed(chosen)),
    onclick: () => remove(pressed(chosen) ? new Set() : chosen) }, pressed(chosen) ? back : words);
  fill($("because"), ...lines, el("div", { class: "buttons" }, end && button("Remove them", "Restore them", world.decisive), enough && button("Keep only the top patches", "Restore all", alone)),
    el("p", { class: "soft small" }, "Patches are ranked by ", el("code", {}, found.method), ". Their tokens are removed from the input; nothing is painted over."));
}
