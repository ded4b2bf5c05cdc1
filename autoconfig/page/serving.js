// The tab of deployments: its own fields beside the question's model and GPUs.

import { h, replace } from "./dom.js";
import { deploymentsView } from "./deployments.js";
import { post } from "./service.js";

const PAUSE = 300;
const NUMBERS = new Set(["isl", "osl", "isl_stddev", "osl_stddev", "rate", "prefix_hit"]);
/** Fields: name, label, usual value. */
const FIELDS = [["isl", "Tokens in", "1000"], ["osl", "Tokens out", "1000"],
  ["isl_stddev", "Stddev in", "0"], ["osl_stddev", "Stddev out", "0"], ["ttft", "TTFT at most", "none, like 2s"],
  ["tpot", "TPOT at most", "none, like 50ms"], ["rate", "Requests/s", "full queue"], ["engine", "Engine", "trtllm-1.2"],
  ["goal", "Goal", "throughput"], ["prefix_hit", "Prefix hits, share", "0"]];
/** What the link holds of this tab. */
export const SERVING = [...FIELDS.map(([name]) => name), "deployment"];

export class Serving {
  /** `question()` gives the page's; `changed()` is told when the link should hold something else; `tell` shows problems. */
  constructor(question, changed, tell) {
    Object.assign(this, { question, changed, tell, values: {}, deployment: null, turn: null, pause: 0 });
    this.inputs = new Map(FIELDS.map(([name, , usual]) => [name, h("input", { id: `serve-${name}`, placeholder: usual,
      spellcheck: "false", maxlength: 100, oninput: () => this.typed(name) })]));
    this.state = h("p", { class: "quiet", role: "status" });
    this.box = h("div", { class: "answer" });
    this.element = h("div", null,
      h("form", { class: "line", "aria-label": "Deployments", onsubmit: (event) => { event.preventDefault(); this.ask(); } },
        FIELDS.map(([name, label]) => h("p", { class: "field" }, h("label", { for: `serve-${name}` }, label), this.inputs.get(name)))),
      this.state, this.box);
  }

  typed(name) {
    this.values[name] = this.inputs.get(name).value.trim();
    clearTimeout(this.pause);
    this.pause = setTimeout(() => { this.changed(); this.ask(); }, PAUSE);
  }

  /** Takes what a link holds. */
  read(choices) {
    for (const [name] of FIELDS) {
      this.values[name] = choices[name] || "";
      this.inputs.get(name).value = this.values[name];
    }
    this.deployment = choices.deployment || null;
  }

  /** What the link should hold. */
  choices() {
    return { ...this.values, deployment: this.deployment };
  }

  async ask() {
    const { model, gpus, gpu, gpus_per_node: node, price } = this.question();
    const body = { model, gpus, gpu, ...(node ? { gpus_per_node: node } : {}), ...(price ? { price } : {}) };
    for (const [name, text] of Object.entries(this.values)) {
      if (text) body[name] = NUMBERS.has(name) && Number.isFinite(Number(text)) ? Number(text) : text;
    }
    if (this.turn) this.turn.abort();
    const turn = new AbortController();
    this.turn = turn;
    this.state.textContent = "asking…";
    try {
      const answer = await post("/v1/deployments", body, { signal: turn.signal });
      this.state.textContent = "";
      replace(this.box, deploymentsView(answer, () => this.deployment, (plan) => { this.deployment = plan; this.changed(); }));
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.state.textContent = "";
      replace(this.box, h("p", { class: "note bad", role: "alert" }, problem.message));
      if (problem.status === 401) this.tell(problem);
    }
  }
}
