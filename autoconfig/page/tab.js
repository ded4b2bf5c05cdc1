// Tabs with fields of their own beside the question's model and GPUs: deployments of a served model, starts of servers, slow runs, steps of post-training.

import { h, replace } from "./dom.js";
import { deploymentsView } from "./deployments.js";
import { diagnosisBody, diagnosisView } from "./diagnosis.js";
import { placementsView } from "./post_training.js";
import { post } from "./service.js";
import { USERS, loadCurves, ratesOf, startView } from "./start.js";

const PAUSE = 300;

/** Tabs: their path; `taken`, what they take of the question; fields (name, label, usual value, whether a number, whether many
 * lines: then the first are `unlinked`); the view of an answer, and under which name the link holds what is chosen in it. */
const TABS = {
  deployments: { label: "Deployments", path: "/v1/deployments", taken: ["model", "gpus", "gpu", "gpus_per_node", "price"],
    view: deploymentsView, chosen: "deployment", fields: [["isl", "Tokens in", "1000", true], ["osl", "Tokens out", "1000", true],
      ["isl_stddev", "Stddev in", "0", true], ["osl_stddev", "Stddev out", "0", true], ["ttft", "TTFT at most", "none, like 2s"],
      ["tpot", "TPOT at most", "none, like 50ms"], ["ttft_p99", "TTFT p99 at most", "none, like 4s"],
      ["tpot_p99", "TPOT p99 at most", "none, like 80ms"], ["rate", "Requests/s", "full queue", true], ["engine", "Engine", "trtllm-1.2"],
      ["goal", "Goal", "throughput"], ["prefix_hit", "Prefix hits, share", "0", true]] },
  start: { label: "Start command", path: "/v1/check", prefix: "start_", taken: [], alone: true, view: startView, curves: true,
    fields: [["text", "Start command, script or YAML", "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16000", false, true],
      ["gpu", "GPU", "as the text says, like l4-24gb"], ["release", "Release", "as the text says, else the newest"], ["settings", "Variables", "MODEL=… TP=2"],
      ["isl", "Tokens in", "none", true], ["osl", "Tokens out", "none", true], ["concurrency", "Users at once", "curves", true],
      ["rate", "Requests/s", "none", true]] },
  diagnose: { label: "Slow run", path: "/v1/diagnose", prefix: "run_", taken: [], alone: true, view: diagnosisView, body: diagnosisBody,
    unlinked: ["log", "launch"], fields: [["log", "Log of the run, NCCL's lines, nvidia-smi", "iteration 40/500 | elapsed time per iteration (ms): 9000 |", false, true],
      ["launch", "Launch script, where the log prints no arguments", "", false, true], ["plan", "Or a plan", "tp=4,pp=4,mbs=1,sp=1"],
      ["model", "Its model", "as the files say"], ["gpus", "Its GPUs", "as the files say", true], ["gpu", "Its GPU", "h100-sxm-80gb"],
      ["software", "Its software", "usual"],
      ["seq_length", "Its sequence", "usual", true], ["global_batch_size", "Its global batch", "usual", true], ["step", "Measured step", "of the log, or 8.1s"]] },
  "post-training": { label: "Post-training", path: "/v1/post-training", taken: ["model", "gpus", "gpu"],
    view: placementsView, chosen: "placement", fields: [["algorithm", "Algorithm", "grpo"], ["framework", "Framework", "verl"],
      ["prompts", "Prompts a step", "usual of the framework", true], ["group_size", "Responses of each", "usual of the framework", true],
      ["minibatch", "Samples an update", "all of the step", true], ["prompt_length", "Tokens of a prompt, mean", "100", true],
      ["response_length", "Tokens of a response, mean", "a quarter of the cap", true],
      ["max_response_length", "Tokens of a response, most", "4096", true],
      ["tokens_per_gpu", "Tokens of a micro-batch", "8192", true], ["staleness", "Steps ahead at most", "1", true],
      ["turns", "Turns of a sample", "1", true], ["tool_time", "Seconds of a tool, mean", "0", true], ["tool_tokens", "Tokens a tool adds", "0", true],
      ["sandboxes", "Tools at once", "without limit", true],
      ["host_memory", "Memory of a node's host", "2TiB"],
      ["fit_chance", "Chance to fit, least", "90%"]] },
};

/** What the link holds of these tabs. */
export const TAB_CHOICES = Object.values(TABS).flatMap(({ fields, chosen, prefix = "", unlinked = [] }) =>
  [...fields.map(([name]) => name).filter((name) => !unlinked.includes(name)).map((name) => prefix + name), ...(chosen ? [chosen] : [])]);

export class Tab {
  /** `question()` gives the page's; `changed()` is told when the link should hold something else; `tell` shows problems. */
  constructor(name, question, changed, tell) {
    Object.assign(this, { of: TABS[name], question, changed, tell, values: {}, chosen: null, turn: null, pause: 0 });
    const { label, fields } = this.of;
    this.inputs = new Map(fields.map(([field, , usual, , area]) => [field, h(area ? "textarea" : "input", { id: `${name}-${field}`,
      placeholder: usual, spellcheck: "false", maxlength: area ? (this.of.unlinked ? 500000 : 6000) : 100, rows: area ? 6 : null, oninput: () => this.typed(field) })]));
    this.state = h("p", { class: "quiet", role: "status" });
    this.box = h("div", { class: "answer" });
    this.element = h("div", null,
      h("form", { class: "line", "aria-label": label, onsubmit: (event) => { event.preventDefault(); this.ask(); } },
        fields.map(([field, text, , , area]) => h("p", { class: area ? "field wide" : "field" }, h("label", { for: `${name}-${field}` }, text), this.inputs.get(field)))),
      this.state, this.box);
  }

  /** Whether it asks nothing of the form beside it. */
  get alone() {
    return Boolean(this.of.alone);
  }

  typed(name) {
    this.values[name] = this.inputs.get(name).value.trim();
    clearTimeout(this.pause);
    this.pause = setTimeout(() => { this.changed(); this.ask(); }, PAUSE);
  }

  /** Takes what a link holds. */
  read(choices) {
    for (const [name] of this.of.fields) {
      if (this.of.unlinked?.includes(name)) continue;
      this.values[name] = choices[(this.of.prefix || "") + name] || "";
      this.inputs.get(name).value = this.values[name];
    }
    this.chosen = (this.of.chosen && choices[this.of.chosen]) || null;
  }

  /** What the link should hold. */
  choices() {
    const { prefix = "", chosen, unlinked = [] } = this.of;
    const values = Object.fromEntries(Object.entries(this.values).filter(([name]) => !unlinked.includes(name)).map(([name, value]) => [prefix + name, value]));
    return { ...values, ...(chosen ? { [chosen]: this.chosen } : {}) };
  }

  async ask() {
    const question = this.of.alone ? {} : this.question();
    const body = Object.fromEntries(this.of.taken.filter((name) => question[name]).map((name) => [name, question[name]]));
    for (const [name, , , number] of this.of.fields) {
      const text = this.values[name];
      if (text) body[name] = number && Number.isFinite(Number(text)) ? Number(text) : text;
    }
    if (this.of.alone && !body.text && !body.log && !body.step) return;
    if (body.settings) body.settings = Object.fromEntries(body.settings.split(/\s+/).map((pair) => [pair.split("=")[0], pair.split("=").slice(1).join("=")]));
    if (this.turn) this.turn.abort();
    const turn = new AbortController();
    this.turn = turn;
    this.state.textContent = "asking…";
    try {
      const ask = (more) => post(this.of.path, { ...(this.of.body ? this.of.body(body) : body), ...more }, { signal: turn.signal });
      if (this.of.curves) return await this.askCurves(body, ask);
      const answer = await ask({});
      this.state.textContent = "";
      replace(this.box, this.of.view(answer, () => this.chosen, (one) => { this.chosen = one; this.changed(); }));
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.state.textContent = "";
      replace(this.box, h("p", { class: "note bad", role: "alert" }, problem.message));
      if (problem.status === 401) this.tell(problem);
    }
  }

  /** The answer, then, where the lengths are given and no load is, that of several numbers of users and of rates. */
  async askCurves(body, ask) {
    const several = body.isl && body.osl && !body.concurrency && !body.rate;
    const answer = await ask(several ? { concurrency: USERS[0] } : {});
    const curves = h("div");
    this.state.textContent = "";
    replace(this.box, this.of.view(several ? { ...answer, load: null } : answer, curves));
    if (!several || answer.kind !== "start" || answer.starts === "no") return;
    const found = [answer];
    for (const concurrency of USERS.slice(1)) {
      found.push(await ask({ concurrency }));
      replace(curves, loadCurves(found));
    }
    const open = [];
    for (const rate of ratesOf(found)) {
      open.push(await ask({ rate }));
      replace(curves, loadCurves(found, open));
    }
  }
}
