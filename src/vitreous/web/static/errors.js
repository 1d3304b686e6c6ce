// The error message of the page.

import { $ } from "./elements.js";
import { isAborted } from "./requests.js";

export function showError(sentence) {
  $("error-message").hidden = !sentence;
  $("error-message").textContent = sentence ? sentence[0].toUpperCase() + sentence.slice(1) : "";
}

// The same function, whose errors are shown on the page.
export const showErrorsOf = (action) => async (...values) => {
  try {
    return await action(...values);
  } catch (problem) {
    if (!isAborted(problem)) showError(problem.message);
  }
};
