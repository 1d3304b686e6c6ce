// The OpenAPI document, readable.

import { $, el, fill } from "./dom.js";

const last = (ref) => ref.split("/").at(-1);

function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return last(schema.$ref);
  if (schema.enum || schema.const) return (schema.enum ?? [schema.const]).map((one) => JSON.stringify(one)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map(kind).join(" | ");
  if (schema.prefixItems) return `[${schema.prefixItems.map(kind).join(", ")}]`;
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  return schema.format ?? schema.type ?? "anything";
}

const table = (head, rows) => el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head.map((word) => el("th", { scope: "col" }, word)))),
  el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, at) => el("td", {}, at ? cell : el("code", {}, cell))))))));

function fields(schema) {
  const needed = schema.required ?? [];
  return Object.entries(schema.properties ?? {}).map(([name, one]) => [name, kind(one), needed.includes(name) ? "yes" : `no${one.default === undefined ? "" : `: ${JSON.stringify(one.default)}`}`, one.description ?? ""]);
}

function endpoint(path, verb, about) {
  const body = about.requestBody && Object.values(about.requestBody.content)[0].schema;
  const good = Object.entries(about.responses["200"]?.content ?? {}).map(([media, one]) => `${kind(one.schema)} (${media})`).join(" or ");
  const given = (about.parameters ?? []).map((one) => [one.name, kind(one.schema), one.required ? "yes" : "no", one.description ?? one.schema.description ?? ""]);
  return el("section", {}, el("h2", {}, el("code", {}, el("span", { class: "verb" }, verb.toUpperCase()), path)), el("p", {}, about.description ?? ""),
    given.length > 0 && table(["query", "type", "required", ""], given),
    body && el("p", {}, "Body: ", el("code", {}, kind(body))), el("p", {}, "Answer: ", el("code", {}, good)));
}

const open = await fetch("/openapi.json").then((answer) => answer.json());
const paths = Object.entries(open.paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, about]) => endpoint(path, verb, about)));
const shapes = Object.entries(open.components.schemas).map(([name, schema]) => el("section", {}, el("h2", {}, el("code", {}, name)), schema.description && el("p", {}, schema.description), table(["field", "type", "required", ""], fields(schema))));
fill($("endpoints"), el("p", { class: "soft" }, `${open.info.description} They are {"error": "one sentence"} with 400, 403, 404, 413, 422, 429, 500 or 504.`), ...paths, ...shapes);
