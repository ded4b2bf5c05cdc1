// The question in the form, and the link that holds it.

import { byId, h, replace } from "./dom.js";
import { DOORS, PATHS, fields, takenBy } from "./fields.js";
import { TAB_CHOICES } from "./tab.js";

/** What the link holds beside the question. */
const CHOICES = ["door", "view", "plan", "compare", "counts", "types", "deployment", "placement", "besides", ...TAB_CHOICES];

/** Where the form is: the door and the view. */
const at = { door: "train", view: "plans" };

export class FieldError extends Error {
  constructor(field, text) {
    super(text);
    this.field = field;
    this.nearest = null;
  }
}

const ofDoor = () => fields.filter(({ doors }) => doors.includes(at.door));
const isShown = ({ doors, not, only }) => doors.includes(at.door) && not !== at.view && (!only || only === at.view);
const shown = () => fields.filter(isShown);
const fieldOf = (name) => shown().find((one) => one.name === name) || ofDoor().find((one) => one.name === name);

/** Shows the fields of a door's view. */
export function showFields(door, view) {
  Object.assign(at, { door, view });
  for (const field of fields) {
    field.place.hidden = !isShown(field);
    field.input.disabled = field.place.hidden;
  }
  byId("paste").hidden = !PATHS[view];
  byId("more").hidden = !shown().some((field) => field.more);
}

/** A value as the service takes it. Raises FieldError where a number is needed and none is written. */
function valueOf({ name, kind }, text) {
  if (kind === "list") return text.split(/\s+/);
  if (kind === "switch") return text === "on";
  const isNumber = Number.isFinite(Number(text));
  const written = kind === "count" && /^\d[\d,]*[kK]?$/.test(text); // 1,000 and 8k are the service's to read
  if (["count", "number"].includes(kind) && !isNumber && !written) throw new FieldError(name, `“${text}” is no number`);
  return kind !== "text" && isNumber ? Number(text) : text;
}

const NEEDED = [["model", "name a model, or paste its config.json"], ["gpus", "say how many GPUs"], ["gpu", "say which GPU type"]];
const NEEDED_OF_BUDGET = [["money", "say how much money, like 3M"], ["days", "say how many days"]];

/** The question in the form, under the names of the API. Raises FieldError where a text is not what its field needs. */
export function readQuestion() {
  const question = {};
  for (const field of shown()) {
    const text = field.input.value.trim();
    if (text) question[field.name] = valueOf(field, text);
  }
  const pasted = byId("f-config").value.trim();
  if (pasted) {
    try {
      question.model = JSON.parse(pasted);
    } catch (error) {
      throw new FieldError("config", `this is no JSON: ${error.message}`);
    }
  }
  for (const [name, text] of at.view === "budget" ? NEEDED_OF_BUDGET : NEEDED) {
    if (question[name] === undefined) throw new FieldError(name, text);
  }
  return question;
}

/** Bodies of the questions about a plan, about counts of GPUs, and of money. */
export const ofPlan = (question, plan) => ({ ...takenBy("explain", question), plan });
export const ofScaling = (question, more) => ({ ...takenBy("scaling", question), ...more });
export function ofBudget(question) {
  const { offers: gpu, most_gpus: gpus } = question;
  return { ...takenBy("budget", question), ...(gpu ? { gpu } : {}), ...(gpus ? { gpus } : {}),
    ...(question.family ? { model: undefined } : {}) };
}

/** Sets a field's text; one that is not among its choices becomes one, so that the service says what is wrong with it. */
function put({ input, usual }, text) {
  const plain = text === usual && input.tagName === "SELECT" ? "" : text;
  if (input.tagName === "SELECT" && plain && ![...input.options].some(({ value }) => value === plain)) input.append(h("option", { value: plain }, plain));
  input.value = plain;
}

/** Fills the form with a question asked elsewhere; gives what the form has no fields for. */
export function fillForm(question) {
  const inline = typeof question.model === "object";
  byId("f-config").value = inline ? JSON.stringify(question.model) : "";
  for (const field of ofDoor()) {
    const value = field.name === "model" && inline ? undefined : question[field.name];
    put(field, value === undefined ? "" : field.kind === "switch" ? (value ? "on" : "off") : Array.isArray(value) ? value.join(" ") : String(value));
  }
  const known = ofDoor().map(({ name }) => name);
  return Object.fromEntries(Object.entries(question).filter(([name]) => !known.includes(name)));
}

/** Fills what is empty in a door with the question that it begins with. */
export function begin(door) {
  for (const field of fields.filter(({ doors }) => doors.includes(door))) {
    const text = DOORS[door].start[field.name];
    if (text && !field.input.value.trim() && !(field.name === "model" && byId("f-config").value.trim())) put(field, text);
  }
}

/** The door in which a link's view is, and which it is in where it does not say. */
function doorOf(given) {
  if (DOORS[given.get("door")]) return given.get("door");
  const having = Object.keys(DOORS).filter((door) => DOORS[door].views.includes(given.get("view") || "plans"));
  return having.length > 1 && given.get("peft") === "lora" ? "tune" : having[0] || "train";
}

/** The link's part after #. Commas, colons and equal signs stay readable. */
export function toHash(choices) {
  const pairs = ofDoor().map(({ name, input, usual }) => [name, input.value.trim(), usual])
    .filter(([, text, usual]) => text && text !== usual).map(([name, text]) => [name, text]);
  const pasted = byId("f-config").value.trim();
  if (pasted && PATHS[at.view]) {
    try {
      pairs.push(["config", JSON.stringify(JSON.parse(pasted))]);
    } catch {
      // what is no JSON is in no link
    }
  }
  const { door, view } = at;
  if (view !== "plans") pairs.push(["view", view]);
  if (doorOf(new URLSearchParams(pairs)) !== door) pairs.push(["door", door]);
  for (const name of CHOICES.slice(2)) if (choices[name]) pairs.push([name, choices[name]]);
  const encoded = (text) => encodeURIComponent(text).replace(/%(3D|2C|3A|2F)/g, (code) => decodeURIComponent(code));
  return pairs.map(([name, text]) => `${name}=${encoded(text)}`).join("&");
}

/** Fills the form from a link's part after #; gives the choices in it with its door and view. Fields that it does not name are empty. */
export function fromHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, "").replaceAll("+", "%2B"));
  const door = doorOf(given);
  for (const field of fields) put(field, (field.doors.includes(door) && given.get(field.name)) || "");
  byId("f-config").value = given.get("config") || "";
  byId("more").open = byId("more").open || fields.some(({ more, name, doors }) => more && doors.includes(door) && given.get(name));
  byId("paste").open = Boolean(given.get("config"));
  const view = DOORS[door].views.includes(given.get("view")) ? given.get("view") : DOORS[door].views[0];
  return { ...Object.fromEntries(CHOICES.map((name) => [name, given.get(name) || null])), door, view };
}

/** Sets a field, as if it was typed. */
export function setField(name, value) {
  const field = fieldOf(name);
  put(field, value);
  field.input.dispatchEvent(new Event("input", { bubbles: true }));
}

const openAround = (element) => {
  for (let around = element.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
};

/** The door that has all of some fields, the present one if it can be. */
export const doorFor = (names) => [at.door, ...Object.keys(DOORS)].find((door) =>
  names.every((name) => fields.some((field) => field.name === name && field.doors.includes(door))));

/** Takes options of a remedy into the form: a value for a field, one more for a list. */
export function useOptions(options) {
  for (const [name, value] of options) {
    const field = fieldOf(name);
    if (!field) continue;
    const before = field.kind === "list" ? field.input.value.trim().split(/\s+/).filter((text) => text && text !== value) : [];
    setField(name, [...before, value].join(" "));
    openAround(field.input);
  }
}

/** What an empty field stands for, as the answer took it. */
export function showUsual(answer) {
  fieldOf("global_batch_size").input.placeholder = answer.workload.global_batch_size;
  fieldOf("seq_length").input.placeholder = answer.workload.seq_length;
  fieldOf("software").input.options[0].textContent = `usual: ${answer.software}`;
}

/** Takes the nearest valid value; of a list, in place of the one that is wrong. */
function takeNearest(field, problem) {
  const words = field.input.value.trim().split(/\s+/);
  const mended = words.map((word) => (word === problem.given ? problem.nearest : word)).join(" ");
  setField(field.name, field.kind === "list" && words.includes(problem.given) ? mended : problem.nearest);
}

/** Shows a problem beside the field that it names, with the nearest valid value to take; false where no field is to blame. */
export function showProblem(problem) {
  clearProblems();
  const pasted = problem.field === "config" || (problem.field === "model" && byId("f-config").value.trim());
  const asked = at.view === "budget" && problem.field ? { gpu: "offers", gpus: "most_gpus" }[problem.field] || problem.field : problem.field;
  const field = pasted ? { name: "config", input: byId("f-config"), problem: byId("problem-config") } : shown().find(({ name }) => name === asked);
  if (!field) return false;
  replace(field.problem, problem.message, problem.nearest && !pasted ? h("button", { type: "button", class: "small",
    onclick: () => { takeNearest(field, problem); field.input.focus(); } }, `use ${problem.nearest}`) : null);
  field.input.setAttribute("aria-invalid", "true");
  field.input.setAttribute("aria-describedby", field.problem.id);
  openAround(field.input);
  return true;
}

export function clearProblems() {
  for (const place of document.querySelectorAll(".problem")) place.replaceChildren();
  for (const element of byId("question").elements) {
    element.removeAttribute("aria-invalid");
    element.removeAttribute("aria-describedby");
  }
}
