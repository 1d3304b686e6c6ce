// The page of pairs: two inputs, the similarity, both maps, and the partners of the part that is pointed at.

import { $, el, fill, segmented, press, written } from "./dom.js";
import { legend } from "./legend.js";
import { ask, only, query } from "./net.js";
import { fieldOf, scaleOf, useColours } from "./paint.js";
import { Pane } from "./pane.js";
import { caught, trouble } from "./trouble.js";

const SIDES = ["first", "second"];
const choice = { model: "scenes", method: "decompx", similarity: "cosine", kind: "image", first: "pair-1-6", second: "pair-1-4", text: "" };
const panes = { first: new Pane(460, "The first image as the model sees it"), second: new Pane(460, "The second image as the model sees it") };
const uploads = {};
let offer = null, explained = null, images = {};
let pinned = null; // [side, index] that a click keeps
let cursor = { first: null, second: null };

// ── the request ─────────────────────────────────────────────────────────────────────────────────

const isText = () => choice.kind === "text";

async function load(image, signal) {
  const answer = await ask(query("/api/seen", { model: choice.model, image }), undefined, signal, true);
  return createImageBitmap(await answer.blob());
}

const explain = caught(async () => {
  const signal = only("pair");
  trouble("");
  remember();
  mark();
  if (isText() && !choice.text.trim()) return;
  document.body.classList.add("loading");
  $("status").hidden = false;
  $("status").textContent = "Computing…";
  try {
    const body = { model: choice.model, image: choice.first, method: choice.method, similarity: choice.similarity, ...(isText() ? { text: choice.text } : { other: choice.second }) };
    const [answer, first, second] = await Promise.all([ask("/api/pairs/explain", body, signal), load(choice.first, signal), isText() ? null : load(choice.second, signal)]);
    explained = answer;
    images = { first, second };
    pinned = null;
    cursor = { first: null, second: null };
    draw();
  } finally {
    if (!signal.aborted) {
      document.body.classList.remove("loading");
      $("status").hidden = true;
    }
  }
});

// ── drawing ─────────────────────────────────────────────────────────────────────────────────────

const other = (side) => (side === "first" ? "second" : "first");

// Shares of the parts of one side: all of its map, or those with one part of the other side.
function shares(side, partner = null) {
  if (partner === null) return explained[side].scores;
  return side === "second" ? explained.matrix[partner] : explained.matrix.map((row) => row[partner]);
}

function name(side, index) {
  const { words, grid } = explained[side];
  return words ? `“${words[index]}”` : `row ${Math.floor(index / grid[1]) + 1}, column ${(index % grid[1]) + 1}`;
}

function draw() {
  const value = explained.similarity;
  $("result-kind").textContent = explained.kind === "dot" ? "Dot product" : "Cosine";
  $("result-value").textContent = value === null ? "undefined" : value.toPrecision(3).replace("-", "−");
  $("help-word").hidden = !explained.second.words;
  $("second-stage").hidden = Boolean(explained.second.words);
  $("words").hidden = !explained.second.words;
  if (explained.second.words) fill($("words"), ...explained.second.words.map((word, index) => el("button", { type: "button", class: "word", "data-index": index,
    onmouseenter: () => point("second", index), onmouseleave: () => point("second", null), onfocus: () => point("second", index), onblur: () => point("second", null), onclick: () => keep("second", index) }, word)));
  strongest();
  show();
}

// Both maps, or the partners of one part on the other side.
function show() {
  const [side, index] = pinned ?? SIDES.map((one) => [one, cursor[one]]).find(([, at]) => at !== null) ?? [null, null];
  for (const one of SIDES) {
    const values = side === null ? shares(one) : one === side ? null : shares(one, index);
    const field = values && fieldOf({ scores: values }, explained[one].grid), scale = field && scaleOf([{ field, signed: true }]);
    const marked = one === side ? index : one === other(side ?? one) || side === null ? cursor[one] : null;
    if (explained[one].words) paintWords(values, scale, marked);
    else {
      panes[one].show(images[one], explained[one].grid, true);
      panes[one].map(field, scale);
      panes[one].over.style.opacity = 0.85;
      panes[one].mark({ cursor: marked });
    }
    const words = side === null ? ["less similar", "more similar"] : ["takes away", "adds"];
    fill($(`${one}-legend`), scale && legend(scale, words));
  }
  $("reading").textContent = side === null ? "" : sentence(side, index);
}

function paintWords(values, scale, marked) {
  for (const button of $("words").children) {
    const index = Number(button.dataset.index), share = values ? values[index] / scale.high : 0;
    button.style.borderColor = share === 0 ? "" : share > 0 ? `rgb(200 40 50 / ${Math.min(1, share)})` : `rgb(40 90 210 / ${Math.min(1, -share)})`;
    button.style.backgroundColor = share === 0 ? "" : share > 0 ? `rgb(200 40 50 / ${0.4 * Math.min(1, share)})` : `rgb(40 90 210 / ${0.4 * Math.min(1, -share)})`;
    button.setAttribute("aria-pressed", String(index === marked));
    button.title = values ? `share ${written(values[index], scale)}` : "";
  }
}

function sentence(side, index) {
  const values = shares(other(side), index), best = values.reduce((top, value, at) => (value > values[top] ? at : top), 0);
  const total = values.reduce((sum, value) => sum + value, 0), digits = (number) => number.toPrecision(2).replace("-", "−");
  return `${side === "first" ? "First" : "Second"}, ${name(side, index)}: its strongest partner is ${name(other(side), best)} (${digits(values[best])}); all partners together ${digits(total)} of ${digits(explained.similarity)}.`;
}

function strongest() {
  const cells = explained.matrix.flatMap((row, i) => row.map((share, j) => [share, i, j])).sort((a, b) => b[0] - a[0]).slice(0, 6);
  fill($("strongest"), ...cells.map(([share, i, j]) => el("button", { type: "button", "data-key": `${i}-${j}`, onclick: () => keep("first", i) },
    `${name("first", i)} ↔ ${name("second", j)}: ${share.toPrecision(2).replace("-", "−")}`)));
}

// ── pointing ────────────────────────────────────────────────────────────────────────────────────

function point(side, index) {
  if (!explained || cursor[side] === index) return;
  cursor = { first: null, second: null, [side]: index };
  show();
}

function keep(side, index) {
  pinned = pinned && pinned[0] === side && pinned[1] === index ? null : [side, index];
  show();
}

function stage(side) {
  const node = $(`${side}-stage`);
  node.append(panes[side].node);
  const under = (event) => (explained && !explained[side].words ? panes[side].under(event) : null);
  node.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") point(side, under(event)); });
  node.addEventListener("pointerleave", () => point(side, null));
  node.addEventListener("blur", () => point(side, null));
  node.addEventListener("click", (event) => { const at = under(event); if (at !== null) keep(side, at); });
  node.addEventListener("keydown", (event) => {
    if (!explained || event.ctrlKey || event.metaKey) return;
    const [rows, columns] = explained[side].grid, steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (steps[event.key]) {
      event.preventDefault();
      pinned = null;
      const at = cursor[side], [down, across] = at === null ? [0, 0] : steps[event.key], r = Math.floor((at ?? 0) / columns), c = (at ?? 0) % columns;
      point(side, Math.min(Math.max(r + down, 0), rows - 1) * columns + Math.min(Math.max(c + across, 0), columns - 1));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (cursor[side] !== null) keep(side, cursor[side]);
    }
  });
}

// ── choosing ────────────────────────────────────────────────────────────────────────────────────

function mark() {
  for (const side of SIDES) for (const one of $(`${side}-album`).children) one.setAttribute("aria-pressed", String(one.dataset.image === choice[side]));
  const text = offer?.models.find((one) => one.name === choice.model)?.text ?? false;
  if (!text) choice.kind = "image";
  $("kind-field").hidden = !text;
  press($("kind"), choice.kind);
  $("second-album").hidden = $("second-upload").hidden = isText();
  $("text-form").hidden = !isText();
  $("second-label").textContent = isText() ? "Text" : "Second image";
  for (const key of ["model", "method", "similarity"]) $(key).value = choice[key];
}

const album = caught(async () => {
  const scenes = await ask(query("/api/album", { page: 0 }));
  for (const side of SIDES) {
    const tile = (image, words) => el("button", { type: "button", class: "tile", "data-image": image, "aria-label": `${words}, ${image.length === 64 ? "uploaded" : image}`, title: words,
      onclick: () => { choice[side] = image; explain(); } },
      el("img", { src: query("/api/thumbnail", { image }), alt: "", width: 84, height: 84 }), el("span", {}, words));
    fill($(`${side}-album`), uploads[side] && tile(uploads[side], "your image"), ...scenes.map((one) => tile(one.image, one.words)));
  }
  mark();
});

const receive = caught(async (side, file) => {
  if (!file) return;
  trouble("");
  const { image } = await ask("/api/images", file, only(`upload-${side}`));
  uploads[side] = choice[side] = image;
  await album();
  explain();
});

// The link that restores the page.
function remember() {
  history.replaceState(null, "", `#${new URLSearchParams(choice)}`);
}

function restore() {
  const link = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(choice)) if (link.has(key)) choice[key] = link.get(key);
}

caught(async () => {
  restore();
  for (const side of SIDES) {
    stage(side);
    $(`${side}-file`).onchange = () => receive(side, $(`${side}-file`).files[0]);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && explained) { pinned = null; cursor = { first: null, second: null }; show(); } });
  const about = await ask("/api/about");
  useColours(about.colours);
  offer = await ask("/api/pairs/about");
  fill($("model"), ...offer.models.map((one) => el("option", { value: one.name }, one.name)));
  fill($("method"), ...[...new Set([...offer.methods, choice.method])].map((one) => el("option", { value: one }, one)));
  segmented($("kind"), { image: "Image", text: "Text" }, choice.kind, (kind) => { choice.kind = kind; explain(); });
  for (const key of ["model", "method", "similarity"]) $(key).onchange = () => { choice[key] = $(key).value; explain(); };
  $("text").value = choice.text;
  $("text-form").onsubmit = (event) => { event.preventDefault(); choice.text = $("text").value; explain(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => explained && show());
  await album();
  await explain();
})();
