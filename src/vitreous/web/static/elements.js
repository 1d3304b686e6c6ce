// Create elements, replace their content, and save files.

export const $ = (id) => document.getElementById(id);

export function create(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && !key.includes("-") && key !== "list") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function createSvg(tag, properties = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(properties)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const identify = (node) => node.dataset.key ?? node.dataset.index ?? node.getAttribute("aria-label") ?? node.textContent;

// Replace the content; focus moves to the new control that has the identity of the old one.
export function fill(node, ...children) {
  const active = document.activeElement, focused = active !== node && node.contains(active) ? identify(active) : null;
  node.replaceChildren(...children.filter(Boolean));
  if (focused === null) return;
  [...node.querySelectorAll("button, input, select")].find((control) => identify(control) === focused)?.focus({ preventScroll: true });
}

// A group of buttons of which one is pressed; `labels` by value.
export function fillSwitch(group, labels, value, choose) {
  fill(group, ...Object.entries(labels).map(([key, label]) =>
    create("button", { type: "button", "aria-pressed": String(key === value), "data-value": key, onclick: () => choose(key) }, label)));
}

export function setPressed(group, value) {
  for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === value));
}

export function saveFile(blob, name) {
  const link = create("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
