// The prediction and the bars of classes, of which one or two are explained.

import { $, create, fill } from "./elements.js";
import { formatCount, formatPercent } from "./formatting.js";
import { countPatches, data, emit, getClassName, listen, state } from "./page_state.js";

let announcement; // timer

export function start() {
  listen("prediction classes loaded", draw);
}

function draw() {
  if (!data.prediction) return;
  const { top: initialTop, probabilities: initial } = data.prediction, { top: [best], probabilities } = data.reducedPrediction ?? data.prediction;
  const removedCount = state.removed.size, indices = [...new Set([...state.classes, ...initialTop.map(({ index }) => index), best.index])];
  indices.sort((a, b) => initial[b] - initial[a]);
  const changed = best.index !== initialTop[0].index;
  $("prediction-prefix").textContent = removedCount ? `Without ${formatCount(removedCount, "patch")} it ${changed ? "now" : "still"} predicts` : "The model predicts";
  $("predicted-class").textContent = best.name;
  $("predicted-probability").textContent = formatPercent(best.probability);
  const bars = new Map([...$("class-bars").children].map((bar) => [Number(bar.dataset.index), bar]));
  fill($("class-bars"), ...indices.map((index) => updateBar(bars.get(index) ?? createBar(index), index, probabilities[index], initial[index], index === best.index)));
  clearTimeout(announcement);
  announcement = setTimeout(() => {
    const explained = state.classes.map((index) => `${getClassName(index)} ${formatPercent(probabilities[index])}`).join(", ");
    $("prediction-announcement").textContent = `${removedCount ? `Without ${removedCount} of ${countPatches()} patches: ` : ""}it predicts ${best.name}, ${formatPercent(best.probability)}. ${explained}.`;
  }, 500);
}

function createBar(index) {
  return create("button", { type: "button", class: "class-bar", "data-index": index, onclick: () => chooseClass(index) },
    create("span", { class: "tick" }), create("span", { class: "name" }, getClassName(index)),
    create("span", { class: "track" }, create("span", { class: "initial" }), create("span", { class: "current" })), create("span", { class: "share" }));
}

function updateBar(bar, index, probability, initial, isBest) {
  const chosen = state.classes.includes(index);
  bar.setAttribute("aria-pressed", String(chosen));
  bar.title = chosen ? "this class is explained" : "explain this class";
  bar.classList.toggle("best", isBest);
  bar.querySelector(".current").style.width = `${100 * (probability ?? 0)}%`;
  bar.querySelector(".initial").style.width = `${100 * (initial ?? 0)}%`;
  bar.querySelector(".share").textContent = formatPercent(probability);
  return bar;
}

// Explain a class, or stop explaining it; a third one replaces the second.
export function chooseClass(index) {
  const { classes } = state;
  if (classes.includes(index)) {
    if (classes.length === 1) return;
    state.classes = classes.filter((target) => target !== index);
  } else state.classes = [classes[0], index].slice(0, 2);
  emit("classes");
  emit("request-maps");
}
