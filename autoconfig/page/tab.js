// Views with fields of their own that ask nothing of the form: starts of servers, slow runs.

import { h, replace } from "./dom.js";
import { diagnosisBody, diagnosisView } from "./diagnosis.js";
import { post } from "./service.js";
import { USERS, loadCurves, ratesOf, startView } from "./start.js";

const PAUSE = 300;

/** Their path, fields (name, label, usual value, whether a number, whether many lines), which of them the link leaves out, the view
 * of an answer. */
const TABS = {
  start: { label: "Start command", path: "/v1/check", prefix: "start_", view: startView, curves: true,
    fields: [["text", "Start command, script or YAML", "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16000", false, true],
      ["gpu", "GPU", "as the text says, like l4-24gb"], ["release", "Release", "as the text says, else the newest"], ["settings", "Variables", "MODEL=… TP=2"],
      ["isl", "Tokens in", "none", true], ["osl", "Tokens out", "none", true], ["concurrency", "Users at once", "curves", true],
      ["rate", "Requests/s", "none", true]] },
  diagnose: { label: "Slow run", path: "/v1/diagnose", prefix: "run_", view: diagnosisView, body: diagnosisBody,
    unlinked: ["log", "launch"], fields: [["log", "Log of the run, NCCL's lines, nvidia-smi", "iteration 40/500 | elapsed time per iteration (ms): 9000 |", false, true],
      ["launch", "Launch script, where the log prints no arguments", "", false, true], ["plan", "Or a plan", "tp=4,pp=4,mbs=1,sp=1"],
      ["model", "Its model", "as the files say"], ["gpus", "Its GPUs", "as the files say", true], ["gpu", "Its GPU", "h100-sxm-80gb"],
      ["software", "Its software", "usual"],
      ["seq_length", "Its sequence", "usual", true], ["global_batch_size", "Its global batch", "usual", true], ["step", "Measured step", "of the log, or 8.1s"]] },
};

/** What the link holds of these views. */
export const TAB_CHOICES = Object.values(TABS).flatMap(({ fields, prefix, unlinked = [] }) =>
  fields.map(([name]) => name).filter((name) => !unlinked.includes(name)).map((name) => prefix + name));

export class Tab {
  /** `changed()` is told when the link should hold something else; `tell` shows problems. */
  constructor(name, changed, tell) {
    Object.assign(this, { of: TABS[name], changed, tell, values: {}, turn: null, pause: 0 });
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

  typed(name) {
    this.values[name] = this.inputs.get(name).value.trim();
    clearTimeout(this.pause);
    this.pause = setTimeout(() => { this.changed(); this.ask(); }, PAUSE);
  }

  /** Takes what a link holds. */
  read(choices) {
    for (const [name] of this.of.fields) {
      if (this.of.unlinked?.includes(name)) continue;
      this.values[name] = choices[this.of.prefix + name] || "";
      this.inputs.get(name).value = this.values[name];
    }
  }

  /** What the link should hold. */
  choices() {
    const { prefix, unlinked = [] } = this.of;
    return Object.fromEntries(Object.entries(this.values).filter(([name]) => !unlinked.includes(name)).map(([name, value]) => [prefix + name, value]));
  }

  async ask() {
    const body = {};
    for (const [name, , , number] of this.of.fields) {
      const text = this.values[name];
      if (text) body[name] = number && Number.isFinite(Number(text)) ? Number(text) : text;
    }
    if (!body.text && !body.log && !body.step) return;
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
      replace(this.box, this.of.view(answer));
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
