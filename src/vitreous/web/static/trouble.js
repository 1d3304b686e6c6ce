// The sentence that says what went wrong, and functions whose errors end there.

import { $ } from "./dom.js";
import { left } from "./net.js";

export function trouble(sentence) {
  $("trouble").hidden = !sentence;
  $("trouble").textContent = sentence ? sentence[0].toUpperCase() + sentence.slice(1) : "";
}

export const caught = (work) => async (...given) => {
  try {
    return await work(...given);
  } catch (problem) {
    if (!left(problem)) trouble(problem.message);
  }
};
