// The page that shows the OpenAPI document.

import { $, create, fill } from "./elements.js";
import { getJson } from "./requests.js";

function describeType(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum || schema.const) return (schema.enum ?? [schema.const]).map((value) => JSON.stringify(value)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map(describeType).join(" | ");
  if (schema.prefixItems) return `[${schema.prefixItems.map(describeType).join(", ")}]`;
  if (schema.type === "array") return `list of ${describeType(schema.items)}`;
  return schema.format ?? schema.type ?? "anything";
}

const createTable = (heads, rows) => create("div", { class: "scroll" }, create("table", {},
  create("thead", {}, create("tr", {}, ...heads.map((head) => create("th", { scope: "col" }, head)))),
  create("tbody", {}, ...rows.map(([name, ...cells]) => create("tr", {}, create("td", {}, create("code", {}, name)), ...cells.map((cell) => create("td", {}, cell)))))));

function listFields(schema) {
  const required = schema.required ?? [];
  const describeDefault = (field) => (field.default === undefined ? "" : `: ${JSON.stringify(field.default)}`);
  return Object.entries(schema.properties ?? {}).map(([name, field]) =>
    [name, describeType(field), required.includes(name) ? "yes" : `no${describeDefault(field)}`, field.description ?? ""]);
}

function createEndpoint(path, verb, endpoint) {
  const body = endpoint.requestBody && Object.values(endpoint.requestBody.content)[0].schema;
  const response = Object.entries(endpoint.responses["200"]?.content ?? {}).map(([media, { schema }]) => `${describeType(schema)} (${media})`).join(" or ");
  const parameters = (endpoint.parameters ?? []).map(({ name, schema, required, description }) =>
    [name, describeType(schema), required ? "yes" : "no", description ?? schema.description ?? ""]);
  return create("section", {}, create("h2", {}, create("code", {}, create("span", { class: "verb" }, verb.toUpperCase()), path)), create("p", {}, endpoint.description ?? ""),
    parameters.length > 0 && createTable(["query", "type", "required", ""], parameters),
    body && create("p", {}, "Body: ", create("code", {}, describeType(body))), create("p", {}, "Answer: ", create("code", {}, response)));
}

const openapi = await getJson("/openapi.json");
const endpoints = Object.entries(openapi.paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, endpoint]) => createEndpoint(path, verb, endpoint)));
const schemas = Object.entries(openapi.components.schemas).map(([name, schema]) => create("section", {}, create("h2", {}, create("code", {}, name)),
  schema.description && create("p", {}, schema.description), createTable(["field", "type", "required", ""], listFields(schema))));
fill($("endpoints"), create("p", { class: "soft" }, `${openapi.info.description} They are {"error": "one sentence"} with 400, 403, 404, 413, 422, 429, 500 or 504.`), ...endpoints, ...schemas);
