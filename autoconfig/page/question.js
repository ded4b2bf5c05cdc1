// The form, the question that it asks, and the link that holds it.

import { byId, h, replace } from "./dom.js";
import { TAB_CHOICES } from "./tab.js";

/** Fields that a search made elsewhere may have besides. */
const ELSEWHERE = ["include", "gpus_at_most", "fit_chance", "vary"];
/** What the link holds beside the question. */
const CHOICES = ["plan", "compare", "view", "counts", "types", "days", ...TAB_CHOICES];

export class FieldError extends Error {
  constructor(field, text) {
    super(text);
    this.field = field;
    this.nearest = null;
  }
}

const control = (name) => byId("question").elements.namedItem(name);

/** Names of the form's fields, but the pasted config; what only a search has is marked in the form. */
const fields = (has = () => true) => [...byId("question").elements]
  .filter((element) => element.name && element.name !== "config" && has(element)).map((element) => element.name);
const ofSearch = () => fields((element) => element.dataset.of === "search");

function kind(name) {
  const element = control(name);
  return element.dataset.kind || (element.inputMode === "numeric" || element.inputMode === "decimal" ? "number" : "text");
}

/** The question in the form, under the names of the API. Raises FieldError where a text is not what its field needs. */
export function readQuestion() {
  const found = {};
  for (const name of fields()) {
    const text = control(name).value.trim();
    if (!text) continue;
    if (kind(name) === "number") {
      const written = control(name).inputMode === "numeric" && /^\d[\d,]*[kK]?$/.test(text); // 1,000 and 8k are the service's to read
      if (!written && !Number.isFinite(Number(text))) throw new FieldError(name, `“${text}” is no number`);
      found[name] = Number.isFinite(Number(text)) ? Number(text) : text;
    } else {
      found[name] = kind(name) === "list" ? text.split(/\s+/) : text;
    }
  }
  const pasted = control("config").value.trim();
  if (pasted) {
    try {
      found.model = JSON.parse(pasted);
    } catch (error) {
      throw new FieldError("config", `this is no JSON: ${error.message}`);
    }
  }
  for (const [name, text] of [["model", "name a model, or paste its config.json"], ["gpus", "say how many GPUs"],
    ["gpu", "say which GPU type"]]) {
    if (found[name] === undefined) throw new FieldError(name, text);
  }
  return found;
}

const without = (question, names) =>
  Object.fromEntries(Object.entries(question).filter(([name]) => !names.includes(name)));

export const ofPlan = (question, plan) => ({ ...without(question, [...ofSearch(), ...ELSEWHERE]), plan });
export const ofScaling = (question, more) => ({ ...without(question, ["sort_by", "top", ...ELSEWHERE]), ...more });

/** Fills the form with a question asked elsewhere; gives the fields that the form does not have, as text. */
export function fillForm(question) {
  for (const name of [...fields(), "config"]) {
    const value = question[name];
    const inline = typeof question.model === "object";
    if (name === "config") control(name).value = inline ? JSON.stringify(question.model) : "";
    else if (name === "model" && inline) control(name).value = "";
    else control(name).value = value === undefined ? control(name).dataset.usual || "" : Array.isArray(value) ? value.join(" ") : value;
  }
  return Object.entries(without(question, fields()))
    .filter(([, value]) => !(Array.isArray(value) && !value.length))
    .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}

/** The link's part after #. Commas, colons and equal signs stay readable. */
export function toHash(choices) {
  const pairs = [];
  for (const name of [...fields(), "config"]) {
    let text = control(name).value.trim();
    const usual = control(name).dataset.usual || "";
    if (name === "config" && text) {
      try {
        text = JSON.stringify(JSON.parse(text));
      } catch {
        continue;
      }
    }
    if (text && text !== usual) pairs.push([name, text]);
  }
  for (const name of CHOICES) if (choices[name]) pairs.push([name, choices[name]]);
  const encoded = (text) => encodeURIComponent(text).replace(/%(3D|2C|3A|2F)/g, (code) => decodeURIComponent(code));
  return pairs.map(([name, text]) => `${name}=${encoded(text)}`).join("&");
}

/** Fills the form from a link's part after #; gives the choices in it. Fields that it does not name take their usual values. */
export function fromHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, "").replaceAll("+", "%2B"));
  if (given.size) {
    for (const name of [...fields(), "config"]) {
      control(name).value = given.get(name) ?? (control(name).dataset.usual || "");
    }
    if (fields((element) => element.closest("#more")).some((name) => given.get(name))) byId("more").open = true;
    byId("paste").open = Boolean(given.get("config"));
  }
  return Object.fromEntries(CHOICES.map((name) => [name, given.get(name) || null]));
}

/** Sets a field, as if it was typed. */
export function setField(name, value) {
  const element = control(name);
  element.value = value;
  element.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Takes options of a remedy into the form: a value for a field, one more for a list. */
export function useOptions(options) {
  for (const [name, value] of options) {
    const before = kind(name) === "list" ? control(name).value.trim().split(/\s+/).filter((text) => text && text !== value) : [];
    setField(name, [...before, value].join(" "));
    for (let around = control(name).closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
  }
}

/** What an empty field stands for, as the answer took it. */
export function showUsual(answer) {
  control("global_batch_size").placeholder = answer.workload.global_batch_size;
  control("seq_length").placeholder = answer.workload.seq_length;
  control("software").placeholder = answer.software;
}

/** Takes the nearest valid value; of a list, in place of the one that is wrong. */
function takeNearest(name, problem) {
  const words = control(name).value.trim().split(/\s+/);
  const mended = words.map((word) => (word === problem.given ? problem.nearest : word)).join(" ");
  setField(name, kind(name) === "list" && words.includes(problem.given) ? mended : problem.nearest);
}

/** Shows a problem beside the field that it names, with the nearest valid value to take; false where no field is to blame. */
export function showProblem(problem) {
  clearProblems();
  const name = problem.field === "model" && control("config").value.trim() ? "config" : problem.field;
  const element = name && control(name);
  const place = element && byId(`problem-${name}`);
  if (!place) return false;
  replace(place, problem.message, problem.nearest ? h("button", { type: "button", class: "small",
    onclick: () => { takeNearest(name, problem); element.focus(); } }, `use ${problem.nearest}`) : null);
  element.setAttribute("aria-invalid", "true");
  element.setAttribute("aria-describedby", place.id);
  for (let around = element.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
  return true;
}

export function clearProblems() {
  for (const place of document.querySelectorAll(".problem")) place.replaceChildren();
  for (const element of byId("question").elements) {
    element.removeAttribute("aria-invalid");
    element.removeAttribute("aria-describedby");
  }
}
