// A colour bar with its numbers.

import { el, number, unit } from "./dom.js";
import { ramp } from "./paint.js";
import { state } from "./state.js";

export function legend(scale, words) {
  const band = el("div", { class: "band" });
  band.style.background = `linear-gradient(to right, ${ramp(scale, state.opacity / 100).join(", ")})`;
  const ticks = [scale.low, scale.signed ? 0 : (scale.low + scale.high) / 2, scale.high];
  return el("div", { class: "colours" }, band,
    el("div", { class: "ticks" }, ...ticks.map((tick) => el("span", {}, number(tick, scale)))), unit(scale) && el("div", { class: "unit" }, unit(scale)),
    words && el("div", { class: "poles" }, ...words.map((word) => el("span", {}, word))));
}
