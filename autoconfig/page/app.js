// The page of the service: an entrance, a form of a few fields for each door, the answer; the link holds all of it.

import { budgetNote, budgetView } from "./budget.js";
import { deploymentsView } from "./deployments.js";
import { byId, copyButton, h, replace } from "./dom.js";
import { entrance } from "./doors.js";
import { DOORS, PATHS, buildForm, takenBy } from "./fields.js";
import { placementsView } from "./post_training.js";
import { begin, clearProblems, doorFor, fillForm, fromHash, ofBudget, ofPlan, ofScaling, readQuestion, setField, showFields, showProblem, showUsual,
  toHash, useOptions } from "./question.js";
import { scalingView } from "./scaling.js";
import { Searches } from "./searches.js";
import { all, post, setKey } from "./service.js";
import { Tab } from "./tab.js";
import { Workbench, optionsOf } from "./views.js";

const PAUSE = 300;
const ASKING = "asking…";
const TITLES = { plans: "Plans", scaling: "Scaling", budget: "Budget", searches: "Searches", deployments: "Deployments", start: "Start command",
  "post-training": "Step", diagnose: "Slow run" };
const MOST_KEPT = 40;

/** `besides`: what is asked beside the fields of the form. `door` is null at the entrance. */
const state = { door: null, view: "plans", question: null, besides: {}, counts: "", types: "", deployment: null, placement: null, written: null };
const kept = new Map();
/** The body that each view shows the answer to. */
const answered = {};
let asking = null;
let pause = 0;
let pending = {};

const bench = new Workbench(source, writeHash, takeOptions);
const searches = new Searches(wholeQuestion, openResult, tell);
const tabs = Object.fromEntries(["start", "diagnose"].map((name) => [name, new Tab(name, writeHash, tell)]));
const boxes = Object.fromEntries(["scaling", "budget", "deployments", "post-training"].map((name) => [name, h("div", { class: "answer" })]));

const affordable = h("div");

const wholeBody = (question) => ({ ...state.besides, ...question });

/** The question of the form with what is asked besides. Raises FieldError. */
function wholeQuestion() {
  return takenBy(PATHS[state.view], wholeBody(readQuestion()));
}

/** Everything about one plan under the present question, each part asked for once. */
async function source(short) {
  const body = ofPlan(state.question, short);
  const key = JSON.stringify(body);
  if (!kept.has(key)) {
    const whole = (async () => {
      const detail = await post("/v1/explain", body);
      if (!detail.legal) return { detail };
      const [timeline, files] = await Promise.all([post("/v1/timeline", body),
        detail.fits ? post("/v1/export", body).catch((problem) => ({ problem })) : {}]);
      return { detail, timeline, files: files.files, fileProblem: files.problem && files.problem.message };
    })();
    kept.set(key, whole);
    whole.catch((problem) => {
      kept.delete(key);
      if (problem.status === 401) tell(problem);
    });
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(key);
}

/** What a view asks, and how it shows the answer; a promise where showing takes further questions. */
const ASKS = {
  plans: { body: (question) => takenBy("plans", question), show: (answer, choices) => {
    showUsual(answer);
    afford();
    return bench.show(answer, choices.plan, choices.compare);
  } },
  scaling: { body: scalingBody, show: (answer) => replace(boxes.scaling, scalingView(answer, (point) => {
    setField("gpu", point.gpu);
    setField("gpus", String(point.num_gpus));
    showView("plans");
  })) },
  budget: { body: ofBudget, show: (answer) => replace(boxes.budget, budgetView(answer, useChoice)) },
  deployments: { body: (question) => takenBy("deployments", question), show: (answer) => replace(boxes.deployments,
    deploymentsView(answer, () => state.deployment, (one) => { state.deployment = one; writeHash(); })) },
  "post-training": { body: (question) => takenBy("post-training", question), show: (answer) => replace(boxes["post-training"],
    placementsView(answer, () => state.placement, (one) => { state.placement = one; writeHash(); })) },
};

/** What the budget in the form trains of its model on its type of GPU, above its plans. */
async function afford() {
  const { money, days, gpu, price, ...question } = wholeBody(readQuestion());
  if (!money || !days) {
    replace(affordable);
    return;
  }
  const { gpus: _, ...rest } = takenBy("budget", question);
  try {
    replace(affordable, budgetNote(await post("/v1/budget", { ...rest, money, days, gpu: [typeof price === "number" ? `${gpu}=${price}` : gpu] })));
  } catch (problem) {
    replace(affordable, h("p", { class: "note bad", role: "alert" }, problem.message));
  }
}

/** Asks what the view shows; with `again` false, not what it shows already. */
async function ask(choices = {}, again = true) {
  clearTimeout(pause);
  pending = choices;
  const { view } = state;
  if (asking) asking.abort();
  if (tabs[view]) {
    tabs[view].ask();
    return;
  }
  if (!ASKS[view]) return;
  const turn = new AbortController();
  asking = turn;
  let question;
  try {
    question = wholeBody(readQuestion());
  } catch (error) {
    fail(error);
    return;
  }
  const body = ASKS[view].body(question);
  if (!again && answered[view] === JSON.stringify(body)) return;
  busy(true);
  try {
    const answer = await post(`/v1/${PATHS[view]}`, body, { signal: turn.signal });
    succeed();
    if (view === "plans") state.question = body;
    answered[view] = JSON.stringify(body);
    const shown = ASKS[view].show(answer, choices);
    writeHash();
    await shown;
  } catch (problem) {
    if (problem.name !== "AbortError") fail(problem);
  } finally {
    if (asking === turn) busy(false);
  }
}

function askSoon(event) {
  clearTimeout(pause);
  if (["model", "config"].includes(event.target.name)) state.besides = {};
  pause = setTimeout(() => ask(), PAUSE);
}

function busy(on) {
  byId("results").setAttribute("aria-busy", String(on));
  if (on || byId("state").textContent === ASKING) byId("state").textContent = on ? ASKING : besidesText();
}

const besidesText = () => {
  const more = Object.entries(state.besides).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return more.length ? `asked besides: ${more.join(", ")}` : "";
};

function succeed() {
  clearProblems();
  byId("problem").hidden = true;
  byId("key-form").hidden = true;
  byId(`view-${state.view}`).classList.remove("stale");
  byId("state").textContent = besidesText();
}

/** Shows what is wrong: beside its field, or above the answer. The answer before stays, without colours. */
function fail(problem) {
  busy(false);
  byId(`view-${state.view}`).classList.add("stale");
  if (answered[state.view]) byId("state").textContent = "shown below: the answer to the question before";
  tell(problem);
}

function tell(problem) {
  if (problem.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
  }
  const beside = showProblem(problem);
  if (beside) change(true);
  byId("problem").hidden = beside;
  const options = beside ? [] : optionsOf(problem.message);
  replace(byId("problem"), beside ? "" : problem.message, options.length ? [" ", h("button", { type: "button", class: "small",
    onclick: () => takeOptions(options) }, `use ${options.map((pair) => pair.join(" ")).join(", ")}`)] : null);
}

/** Takes options of a remedy: into the door that has them. */
function takeOptions(options) {
  const door = doorFor(options.map(([name]) => name));
  if (door && door !== state.door) openDoor(door, "plans");
  useOptions(options);
}

/** Takes a choice of a budget into the question of its plans; its shape, where no model of the catalogue has it, is asked besides. */
function useChoice(one) {
  const { size, gpu, num_gpus: gpus, price } = one;
  showView("plans");
  for (const [name, value] of Object.entries({ model: size.model, gpu, gpus, price: price.price_per_gpu_hour, tokens: one.tokens })) setField(name, String(value));
  clearTimeout(pause);
  state.besides = size.architecture;
  ask();
}

function writeHash() {
  if (!state.door) return;
  const { counts, types, deployment, placement } = state;
  const besides = Object.keys(state.besides).length ? JSON.stringify(state.besides) : null;
  const ofView = { plans: { plan: bench.plan, compare: bench.compared }, scaling: { counts, types }, deployments: { deployment },
    "post-training": { placement } }[state.view];
  const hash = toHash({ ...(tabs[state.view] ? tabs[state.view].choices() : {}), ...ofView, besides });
  state.written = `#${hash}`;
  if (location.hash !== state.written) history.replaceState(null, "", state.written);
}

function readBesides(text) {
  try {
    return text ? JSON.parse(text) : {};
  } catch {
    return {};
  }
}

/** Takes what the link says; gives the choices in it. Without anything behind # it is the entrance. */
function readHash() {
  state.written = location.hash;
  if (location.hash.length < 2) {
    showEntrance();
    return null;
  }
  const choices = fromHash(location.hash);
  for (const name of ["counts", "types"]) byId(name).value = state[name] = choices[name] || "";
  Object.assign(state, { deployment: choices.deployment, placement: choices.placement, besides: readBesides(choices.besides) });
  for (const tab of Object.values(tabs)) tab.read(choices);
  openDoor(choices.door, choices.view);
  return choices;
}

function showEntrance() {
  state.door = null;
  byId("copy").hidden = true;
  byId("entrance").hidden = false;
  byId("workplace").hidden = true;
  for (const name of ["tabs", "doors", "state"]) byId(name).hidden = true;
}

/** Opens a door at a view, and asks nothing yet. */
function openDoor(door, view) {
  state.door = door;
  byId("copy").hidden = false;
  byId("entrance").hidden = true;
  byId("workplace").hidden = false;
  for (const name of ["tabs", "doors", "state"]) byId(name).hidden = false;
  for (const button of byId("doors").children) {
    if (button.dataset.door === door) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  const views = DOORS[door].views;
  byId("tabs").hidden = views.length < 2;
  for (const name of Object.keys(TITLES)) byId(`tab-${name}`).hidden = !views.includes(name);
  selectView(view);
}

/** Opens a door with what its question begins with, and asks it. */
function enter(door, view = DOORS[door].views[0]) {
  begin(door);
  state.besides = {};
  openDoor(door, view);
  writeHash();
  ask();
}

function selectView(view) {
  state.view = view;
  for (const name of Object.keys(TITLES)) {
    const tab = byId(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    byId(`view-${name}`).hidden = name !== view;
  }
  showFields(state.door, view);
  byId("workplace").classList.toggle("alone", !PATHS[view]);
  byId("change").hidden = !PATHS[view];
  byId("problem").hidden = true;
}

/** Shows another view of the door; asks what it shows where that is another question than the one that it has answered. */
function showView(view) {
  clearTimeout(pause);
  if (asking) asking.abort();
  selectView(view);
  byId("state").textContent = besidesText();
  writeHash();
  if (view === "searches") searches.refresh();
  else ask({}, false);
}

function scalingForm() {
  const field = (id, label, placeholder) => h("p", { class: "field" }, h("label", { for: id }, label),
    h("input", { id, placeholder, spellcheck: "false", oninput: () => {
      state[id] = byId(id).value.trim();
      clearTimeout(pause);
      pause = setTimeout(() => ask(), PAUSE);
    } }));
  return h("form", { class: "line", "aria-label": "Scaling", onsubmit: (event) => { event.preventDefault(); ask(); } },
    field("counts", "GPU counts", "64:1024, or 64,96,128"), field("types", "GPU types", "as on the left, or a,b"));
}

function scalingBody(question) {
  const gpus = Number(String(question.gpus).replaceAll(",", ""));
  const counts = state.counts || `${Math.max(1, Math.floor(gpus / 4))}:${gpus * 4}`;
  return ofScaling(question, { gpus: counts, gpu: state.types || question.gpu });
}

/** Shows what a search found, under its own question: the form takes what it has fields for, the rest is asked besides. */
function openResult(search, answer) {
  const question = Object.fromEntries(Object.entries(search.question).filter(([, value]) => value !== null && !(Array.isArray(value) && !value.length)));
  if (question.gpus_at_most !== undefined) question.gpus = answer.cluster.num_gpus;
  delete question.gpus_at_most;
  openDoor(question.peft === "lora" ? "tune" : "train", "plans");
  state.besides = fillForm(question);
  succeed();
  state.question = question;
  answered.plans = JSON.stringify(question);
  bench.show(answer);
  writeHash();
  byId("results").focus();
}

async function fillLists() {
  const fill = (id, values) => replace(byId(id), values.map((value) => h("option", { value })));
  try {
    const [models, gpus] = await Promise.all([all("models"), all("gpus")]);
    fill("models", models.map((model) => model.name));
    fill("gpu-types", gpus.map((gpu) => gpu.id));
  } catch (problem) {
    if (problem.status === 401) tell(problem);
  }
}

function tabKeys(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const { views } = DOORS[state.door];
  const view = views[(views.indexOf(state.view) + step + views.length) % views.length];
  showView(view);
  byId(`tab-${view}`).focus();
}

/** Shows or hides the form where a window is narrow. */
function change(open) {
  byId("question").classList.toggle("open", open);
  byId("change").setAttribute("aria-expanded", String(open));
}

function build() {
  buildForm();
  for (const [view, title] of Object.entries(TITLES)) {
    byId("tabs").append(h("button", { type: "button", role: "tab", id: `tab-${view}`, "aria-controls": `view-${view}`, onclick: () => showView(view) }, title));
    byId("results").append(h("section", { id: `view-${view}`, role: "tabpanel", "aria-labelledby": `tab-${view}`, hidden: true }, boxes[view] || null));
  }
  for (const [door, { name }] of Object.entries(DOORS)) {
    byId("doors").append(h("button", { type: "button", class: "plain", "data-door": door, onclick: () => enter(door) }, name));
  }
  replace(byId("entrance"), entrance(enter, (money, days) => {
    fromHash("#door=train&view=budget");
    openDoor("train", "budget");
    setField("money", money);
    setField("days", days);
    writeHash();
    ask();
  }));
  byId("view-plans").append(affordable, bench.element);
  byId("view-scaling").prepend(scalingForm());
  for (const [name, tab] of Object.entries(tabs)) byId(`view-${name}`).append(tab.element);
  byId("view-searches").append(searches.element);
}

function start() {
  build();
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("results").focus();
  });
  byId("copy").append(copyButton("Copy link", () => location.href));
  byId("home").addEventListener("click", (event) => {
    event.preventDefault();
    history.pushState(null, "", location.pathname);
    readHash();
  });
  byId("change").addEventListener("click", () => change(!byId("question").classList.contains("open")));
  byId("question").addEventListener("input", askSoon);
  byId("question").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value.trim());
    byId("key-form").hidden = true;
    fillLists();
    if (state.view === "searches") searches.refresh();
    if (state.door) ask(pending);
  });
  byId("tabs").addEventListener("keydown", tabKeys);
  for (const kind of ["hashchange", "popstate"]) {
    window.addEventListener(kind, () => {
      if (location.hash === state.written) return;
      const choices = readHash();
      if (choices) begun(choices);
    });
  }
  const choices = readHash();
  fillLists();
  if (choices) begun(choices);
}

/** Asks what a link says. */
function begun(choices) {
  if (state.view === "searches") searches.refresh();
  else ask(choices);
}

start();
