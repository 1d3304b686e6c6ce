// Adding a method: the catalogue, searched, or a spec as it is typed.

import { $, el, fill } from "./dom.js";
import { add } from "./maps.js";
import { on, state, world } from "./state.js";

const FIRST = ["temper", "decompx+skipplus", "attnlrp", "tokentm", "genatt", "ixg", "rollout", "occlusion", "tis(masks=128)"];

export function start() {
  on("pick", () => { $("filter").value = ""; list(); $("picker").showModal(); $("filter").focus(); });
  $("filter").oninput = list;
  $("filter").onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); $("found").querySelector("button")?.click(); } };
  $("picker").onclick = (event) => { if (event.target === $("picker")) $("picker").close(); };
}

function cost({ forwards, backwards }) {
  const slow = typeof forwards === "string" || typeof backwards === "string";
  return slow ? `slower: ${forwards} forward passes` : "";
}

function list() {
  const words = $("filter").value.trim().toLowerCase(), all = world.about.methods;
  const named = (spec) => all.find((m) => m.name === spec.split(/[(@+]/)[0]);
  const entries = words ? all.map((m) => [m.name, m]).filter(([name, m]) => `${name} ${m.title}`.toLowerCase().includes(words))
    : [...FIRST.map((spec) => [spec, named(spec)]), ...all.filter((m) => !FIRST.includes(m.name)).map((m) => [m.name, m])];
  const typed = words && !entries.some(([spec]) => spec === words) && named(words) ? [[$("filter").value.trim(), { ...named(words), title: "as typed" }]] : [];
  const shown = [...typed, ...entries].filter(([spec, m]) => m && !state.methods.includes(spec));
  fill($("found"), ...shown.map(([spec, m]) => el("button", { type: "button", onclick: () => { $("picker").close(); add(spec); } },
    el("code", {}, spec), el("span", {}, m.title), el("small", { class: "soft" }, [m.class_specific ? "" : "the same for every class", m.signed ? "signed" : "", cost(m)].filter(Boolean).join(" · ")))),
    !shown.length && el("p", { class: "soft" }, "No method of that name. A spec is name(options)@linearisation+fold."));
}
