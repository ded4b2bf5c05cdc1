// The page of the service: the form asks, the answer is shown, the link holds both.

import { byId, copyButton, h, replace } from "./dom.js";
import { clearProblems, fillForm, fromHash, ofPlan, ofScaling, readQuestion, setField, showProblem, showUsual, toHash, useOptions } from "./question.js";
import { scalingView } from "./scaling.js";
import { Searches } from "./searches.js";
import { all, post, setKey } from "./service.js";
import { Tab } from "./tab.js";
import { Workbench, optionsOf } from "./views.js";

const PAUSE = 300;
const ASKING = "asking…";
const VIEWS = ["plans", "scaling", "deployments", "start", "diagnose", "post-training", "searches"];
const MOST_KEPT = 40;

const state = { question: null, view: "plans", counts: "", types: "", days: "", written: null };
const kept = new Map();
let asking = null;
let scaling = null;
let pause = 0;
let pending = {};

const bench = new Workbench(source, writeHash, useOptions);
const searches = new Searches(readQuestion, openResult, tell);
const tabs = Object.fromEntries(["deployments", "start", "diagnose", "post-training"].map((name) =>
  [name, new Tab(name, () => state.question || readQuestion(), writeHash, tell)]));
const scalingBox = h("div");

/** Everything about one plan under the present question, each part asked for once. */
async function source(short) {
  const body = ofPlan(state.question, short);
  const key = JSON.stringify(body);
  if (!kept.has(key)) {
    const whole = (async () => {
      const detail = await post("/v1/explain", body);
      if (!detail.legal) return { detail };
      const [timeline, files] = await Promise.all([post("/v1/timeline", body),
        post("/v1/export", body).catch((problem) => ({ problem }))]);
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

async function ask(choices = {}) {
  clearTimeout(pause);
  pending = choices;
  if (asking) asking.abort();
  const turn = new AbortController();
  asking = turn;
  let question;
  try {
    question = readQuestion();
  } catch (error) {
    fail(error);
    return;
  }
  busy(true);
  try {
    const answer = await post("/v1/plans", question, { signal: turn.signal });
    succeed();
    state.question = question;
    showUsual(answer);
    const shown = bench.show(answer, choices.plan, choices.compare);
    writeHash();
    if (state.view === "scaling") askScaling();
    if (tabs[state.view] && !tabs[state.view].alone) tabs[state.view].ask();
    await shown;
  } catch (problem) {
    if (problem.name !== "AbortError") fail(problem);
  } finally {
    if (asking === turn) busy(false);
  }
}

function askSoon() {
  clearTimeout(pause);
  pause = setTimeout(() => ask(), PAUSE);
}

function busy(on) {
  byId("results").setAttribute("aria-busy", String(on));
  if (on || byId("state").textContent === ASKING) byId("state").textContent = on ? ASKING : "";
}

function succeed() {
  clearProblems();
  byId("problem").hidden = true;
  byId("key-form").hidden = true;
  byId("view-plans").classList.remove("stale");
  byId("state").textContent = "";
}

/** Shows what is wrong: beside its field, or above the answer. The answer before stays, without colours. */
function fail(problem) {
  busy(false);
  byId("view-plans").classList.add("stale");
  if (bench.answer) byId("state").textContent = "shown below: the answer to the question before";
  tell(problem);
}

function tell(problem) {
  if (problem.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
  }
  const beside = showProblem(problem);
  byId("problem").hidden = beside;
  const options = beside ? [] : optionsOf(problem.message);
  replace(byId("problem"), beside ? "" : problem.message, options.length ? [" ", h("button", { type: "button", class: "small",
    onclick: () => useOptions(options) }, `use ${options.map((pair) => pair.join(" ")).join(", ")}`)] : null);
}

function writeHash() {
  const hash = toHash({ ...state, ...Object.values(tabs).reduce((all, tab) => ({ ...all, ...tab.choices() }), {}), plan: bench.plan, compare: bench.compared, view: state.view === "plans" ? null : state.view });
  state.written = `#${hash}`;
  if (location.hash !== state.written) history.replaceState(null, "", state.written);
}

function readHash() {
  const choices = fromHash(location.hash);
  for (const name of ["counts", "types", "days"]) state[name] = choices[name] || "";
  for (const tab of Object.values(tabs)) tab.read(choices);
  byId("counts").value = state.counts;
  byId("types").value = state.types;
  byId("days").value = state.days;
  showView(VIEWS.includes(choices.view) ? choices.view : "plans", false);
  if (tabs[state.view] && tabs[state.view].alone) tabs[state.view].ask();
  return choices;
}

function showView(view, act = true) {
  state.view = view;
  for (const name of VIEWS) {
    const tab = byId(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    byId(`view-${name}`).hidden = name !== view;
  }
  if (!act) return;
  byId("problem").hidden = true;
  writeHash();
  if (view === "scaling") askScaling();
  if (tabs[view] && (tabs[view].alone || state.question)) tabs[view].ask();
  if (view === "searches") searches.refresh();
}

function scalingForm() {
  const field = (id, label, placeholder) => h("p", { class: "field" }, h("label", { for: id }, label),
    h("input", { id, placeholder, spellcheck: "false", oninput: () => {
      state[id] = byId(id).value.trim();
      clearTimeout(scalingForm.pause);
      scalingForm.pause = setTimeout(() => { writeHash(); askScaling(); }, PAUSE);
    } }));
  return h("form", { class: "line", "aria-label": "Scaling", onsubmit: (event) => { event.preventDefault(); askScaling(); } },
    field("counts", "GPU counts", "64:1024, or 64,96,128"), field("types", "GPU types", "as on the left, or a,b"),
    field("days", "Deadline, days (needs tokens)", "none"));
}

async function askScaling() {
  if (!state.question || state.view !== "scaling") return;
  if (scaling) scaling.abort();
  const turn = new AbortController();
  scaling = turn;
  const gpus = Number(String(state.question.gpus).replaceAll(",", ""));
  const counts = state.counts || `${Math.max(1, Math.floor(gpus / 4))}:${gpus * 4}`;
  const body = ofScaling(state.question, { gpus: counts, gpu: state.types || state.question.gpu,
    ...(state.days ? { days: Number(state.days) } : {}) });
  byId("state").textContent = ASKING;
  try {
    const answer = await post("/v1/scaling", body, { signal: turn.signal });
    succeed();
    replace(scalingBox, scalingView(answer, (point) => {
      setField("gpu", point.gpu);
      setField("gpus", String(point.num_gpus));
      showView("plans");
    }));
  } catch (problem) {
    if (problem.name !== "AbortError") {
      replace(scalingBox, h("p", { class: "note bad", role: "alert" }, problem.message));
      if (problem.status === 401) tell(problem);
    }
  } finally {
    if (scaling === turn) byId("state").textContent = "";
  }
}

/** Shows what a search found, under its own question: the form takes what it has fields for, the rest is named. */
function openResult(search, answer) {
  const question = Object.fromEntries(Object.entries(search.question).filter(([, value]) => value !== null));
  if (question.gpus_at_most !== undefined) question.gpus = answer.cluster.num_gpus;
  const more = fillForm(question);
  succeed();
  state.question = question;
  showView("plans", false);
  bench.show(answer);
  writeHash();
  byId("state").textContent = more ? `asked besides, and not in the link: ${more}` : "";
  byId("results").focus();
}

async function fillLists() {
  const fill = (id, values) => replace(byId(id), values.map((value) => h("option", { value })));
  try {
    const [models, gpus, software] = await Promise.all([all("models"), all("gpus"), all("software")]);
    fill("models", models.map((model) => model.name));
    fill("gpu-types", gpus.map((gpu) => gpu.id));
    fill("stacks", software.map((stack) => stack.name));
  } catch (problem) {
    if (problem.status === 401) tell(problem);
  }
}

function tabKeys(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const view = VIEWS[(VIEWS.indexOf(state.view) + step + VIEWS.length) % VIEWS.length];
  showView(view);
  byId(`tab-${view}`).focus();
}

function start() {
  byId("view-plans").append(bench.element);
  byId("view-scaling").append(scalingForm(), scalingBox);
  for (const [name, tab] of Object.entries(tabs)) byId(`view-${name}`).append(tab.element);
  byId("view-searches").append(searches.element);
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("results").focus();
  });
  byId("link").replaceWith(copyButton("Copy link", () => location.href));
  byId("question").addEventListener("input", askSoon);
  byId("question").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value.trim());
    fillLists();
    ask(pending);
    if (state.view === "searches") searches.refresh();
  });
  for (const view of VIEWS) byId(`tab-${view}`).addEventListener("click", () => showView(view));
  document.querySelector("[role=tablist]").addEventListener("keydown", tabKeys);
  window.addEventListener("hashchange", () => {
    if (location.hash !== state.written) ask(readHash());
  });
  ask(readHash());
  fillLists();
  if (state.view === "searches") searches.refresh();
}

start();
