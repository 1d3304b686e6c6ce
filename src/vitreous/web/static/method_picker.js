// The dialog that adds a method: the list of methods, searched, or a spec as it is typed.

import { $, create, fill } from "./elements.js";
import { addMethod } from "./map_cards.js";
import { data, listen, state } from "./page_state.js";

const FIRST_SPECS = ["temper", "decompx+skipplus", "attnlrp", "tokentm", "genatt", "ixg", "rollout", "occlusion", "tis(masks=128)"];

export function start() {
  listen("open-picker", () => { $("method-search").value = ""; draw(); $("method-picker").showModal(); $("method-search").focus(); });
  $("method-search").oninput = draw;
  $("method-search").onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); $("method-list").querySelector("button")?.click(); } };
  $("method-picker").onclick = (event) => { if (event.target === $("method-picker")) $("method-picker").close(); };
}

function describeMethod({ class_specific: classSpecific, signed, forwards, backwards }) {
  const isSlow = typeof forwards === "string" || typeof backwards === "string";
  return [classSpecific ? "" : "the same for every class", signed ? "signed" : "", isSlow ? `slower: ${forwards} forward passes` : ""].filter(Boolean).join(" · ");
}

function draw() {
  const text = $("method-search").value.trim().toLowerCase(), { methods } = data.about;
  const findByName = (spec) => methods.find((method) => method.name === spec.split(/[(@+]/)[0]);
  const entries = text ? methods.filter(({ name, title }) => `${name} ${title}`.toLowerCase().includes(text)).map((method) => [method.name, method])
    : [...FIRST_SPECS.map((spec) => [spec, findByName(spec)]), ...methods.filter((method) => !FIRST_SPECS.includes(method.name)).map((method) => [method.name, method])];
  const typed = text && !entries.some(([spec]) => spec === text) && findByName(text) ? [[$("method-search").value.trim(), { ...findByName(text), title: "as typed" }]] : [];
  const offered = [...typed, ...entries].filter(([spec, method]) => method && !state.methods.includes(spec));
  fill($("method-list"), ...offered.map(([spec, method]) => create("button", { type: "button", onclick: () => { $("method-picker").close(); addMethod(spec); } },
    create("code", {}, spec), create("span", {}, method.title), create("small", { class: "soft" }, describeMethod(method)))),
    !offered.length && create("p", { class: "soft" }, "No method of that name. A spec is name(options)@linearisation+fold."));
}
