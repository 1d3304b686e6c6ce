// Two maps compared: their highest patches are removed, or are all that is left, and the prediction changes.

import { $, el, fill, percent, press, segmented, svg } from "./dom.js";
import { Pane } from "./pane.js";
import { className, emit, found, on, patches, state, world } from "./state.js";

const MODES = { deletion: "Remove the highest", insertion: "Keep only the highest" };
let W = 560;
const H = 250, L = 46, R = 22, T = 12, B = 34;
const sides = [];
let playing = null;

export function start() {
  segmented($("mode"), MODES, state.mode, (mode) => { state.mode = mode; state.step = 0; stop(); emit("curves"); emit("link"); });
  $("share").oninput = () => { stop(); state.step = Number($("share").value); frame(); emit("link"); };
  $("play").onclick = () => (playing ? stop() : play());
  for (const side of [0, 1]) {
    const pane = new Pane(280), select = el("select", { "aria-label": side ? "Second method" : "First method" });
    select.onchange = () => { state.rivals[side] = Number(select.value); emit("ask"); emit("curves"); };
    const says = el("p", { class: "duel-says" });
    sides.push({ pane, select, says });
    $("duel").append(el("div", { class: `side-${side}` }, el("div", { class: "duel-head" }, el("span", { class: "swatch" }), select), pane.node, says));
  }
  on("subject curves methods classes maps", draw);
  addEventListener("resize", () => world.here && draw());
}

const curves = () => state.rivals.map((at) => world.curves.get(state.methods[at])).map((one) => (one?.target === state.classes[0] ? one : null));
const steps = (curve) => curve?.[state.mode] ?? [];

function draw() {
  press($("mode"), state.mode);
  sides.forEach(({ select }, side) => {
    fill(select, ...state.methods.map((method, at) => el("option", { value: at, selected: at === state.rivals[side] }, method)));
    select.value = state.rivals[side];
  });
  if (!world.here) return;
  const longest = Math.max(...curves().map((one) => steps(one).length), 1) - 1;
  $("share").max = longest;
  state.step = Math.min(state.step, longest);
  chart();
  frame();
}

// ── one moment ──────────────────────────────────────────────────────────────────────────────────

function frame() {
  const both = curves(), { step } = state;
  $("share").value = step;
  sides.forEach(({ pane, says }, side) => {
    const curve = both[side], at = steps(curve)[step];
    pane.show(world.image, world.facts.grid, null);
    pane.map(null);
    if (!at) {
      pane.mark({ removed: new Set() });
      const failed = found(state.methods[state.rivals[side]])?.error;
      return fill(says, el("span", { class: "soft" }, failed ?? "computing…"));
    }
    const highest = curve.order.slice(0, at.count), rest = curve.order.slice(at.count);
    pane.mark({ removed: new Set(state.mode === "deletion" ? highest : rest) });
    pane.node.setAttribute("aria-label", `${MODES[state.mode]} by ${curve.method}: ${at.count} patches`);
    fill(says, el("strong", {}, percent(at.probability)), ` ${className(state.classes[0])}`,
      el("span", { class: "soft" }, `predicted: ${at.top[0].name}`));
  });
  const one = both.find(Boolean), count = steps(one)[step]?.count ?? 0;
  $("share-says").textContent = `${percent(count / patches())} · ${count} of ${patches()} patches`;
  $("share").setAttribute("aria-valuetext", `${count} of ${patches()} patches`);
  const line = $("chart").querySelector(".now");
  if (line) for (const end of ["x1", "x2"]) line.setAttribute(end, x(count));
  both.forEach((curve, side) => {
    const dot = $("chart").querySelector(`.dot-${side}`), at = steps(curve)[step];
    if (dot && at) { dot.setAttribute("cx", x(at.count)); dot.setAttribute("cy", y(at.probability)); }
  });
}

function play() {
  const last = Number($("share").max), still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (state.step >= last || still) state.step = still ? last : 0;
  if (still) return frame();
  $("play").textContent = "Pause";
  playing = setInterval(() => {
    state.step += 1;
    frame();
    if (state.step >= last) stop();
  }, 110);
}

function stop() {
  clearInterval(playing);
  playing = null;
  $("play").textContent = "Play";
}

// ── the curve ───────────────────────────────────────────────────────────────────────────────────

const x = (count) => L + (count / Math.max(patches(), 1)) * (W - L - R);
const y = (share) => T + (1 - (share ?? 0)) * (H - T - B);

function chart() {
  W = Math.min(Math.max($("chart").clientWidth || 560, 280), 720);
  const both = curves(), same = state.rivals[0] === state.rivals[1];
  const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Probability of ${className(state.classes[0])} against the share of patches` });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    chart.append(svg("line", { class: "rule", x1: L, x2: W - R, y1: y(share), y2: y(share) }), text(L - 7, y(share) + 4, "end", `${100 * share} %`));
  }
  for (const share of [0, 0.25, 0.5, 0.75, 1]) chart.append(text(x(share * patches()), H - B + 17, "middle", `${100 * share} %`));
  chart.append(text((L + W - R) / 2, H - 3, "middle", state.mode === "deletion" ? "patches removed, highest first" : "patches kept, highest first"));
  chart.append(svg("line", { class: "now", x1: L, x2: L, y1: T, y2: H - B }));
  both.forEach((curve, side) => {
    if (!curve || (same && side)) return;
    const points = steps(curve).map((one) => `${x(one.count).toFixed(1)},${y(one.probability).toFixed(1)}`).join(" ");
    chart.append(svg("polyline", { class: `line-${side}`, points }), svg("circle", { class: `dot-${side}`, r: 5, cx: L, cy: T }));
  });
  fill($("chart"), chart);
  fill($("verdict"), verdict(both, same));
}

function text(left, top, anchor, words) {
  return svg("text", { x: left, y: top, "text-anchor": anchor }, words);
}

function verdict(both, same) {
  if (same || both.some((one) => !one)) return null;
  const areas = both.map((one) => one[`${state.mode}_area`]), lower = state.mode === "deletion", names = both.map((one) => one.method);
  const better = (areas[0] < areas[1]) === lower ? 0 : 1, gap = Math.abs(areas[0] - areas[1]);
  const numbers = el("span", { class: "soft" }, ` Area under the curve: ${names[0]} ${areas[0].toFixed(3)}, ${names[1]} ${areas[1].toFixed(3)}; ${lower ? "lower" : "higher"} is better.`);
  if (gap < 0.01) return el("span", {}, "On this image neither is better.", numbers);
  return el("span", {}, el("code", {}, names[better]), lower ? " lowers the probability sooner: " : " raises the probability sooner: ", "on this image it is the more faithful map.", numbers);
}
