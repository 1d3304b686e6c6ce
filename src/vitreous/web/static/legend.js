// A colour bar with its numbers.

import { create } from "./elements.js";
import { formatExponent, formatScore } from "./formatting.js";
import { listRampColours } from "./map_colours.js";

// `labels`: words for both ends, below the numbers.
export function createLegend(scale, opacity, labels) {
  const bar = create("div", { class: "colour-bar" });
  bar.style.background = `linear-gradient(to right, ${listRampColours(scale, opacity).join(", ")})`;
  const ticks = [scale.low, scale.signed ? 0 : (scale.low + scale.high) / 2, scale.high], exponent = formatExponent(scale);
  return create("div", { class: "colour-legend" }, bar,
    create("div", { class: "ticks" }, ...ticks.map((tick) => create("span", {}, formatScore(tick, scale)))),
    exponent && create("div", { class: "exponent" }, exponent),
    labels && create("div", { class: "end-labels" }, ...labels.map((label) => create("span", {}, label))));
}
