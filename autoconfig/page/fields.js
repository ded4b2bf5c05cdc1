// The doors of the page and the fields of its form. What a field may be, the service says (`#fields` in the page, by question).

import { byId, h } from "./dom.js";

/** What one comes for: its views, the first of which it opens with, and a question to begin with. */
export const DOORS = {
  train: { name: "Train", text: "A model from its first token: how to divide it, how long a step takes, days and cost.",
    views: ["plans", "scaling", "budget", "searches"], start: { model: "llama3-70b", gpus: "64", gpu: "h100-sxm-80gb" } },
  tune: { name: "Fine-tune", text: "A model that is there, on the GPUs you have: adapters (LoRA) or all weights, what fits.",
    views: ["plans", "scaling", "budget", "searches"],
    start: { model: "llama3-8b", gpus: "8", gpu: "h100-sxm-80gb", peft: "lora" } },
  serve: { name: "Serve", text: "Answer requests: engines, latency, throughput, cost of a million tokens; or the start command you have.",
    views: ["deployments", "start"],
    start: { model: "llama-3.3-70b-instruct", gpus: "8", gpu: "h100-sxm-80gb", isl: "1000", osl: "500", ttft: "2s", tpot: "50ms" } },
  rl: { name: "Post-training", text: "A step of GRPO, DAPO, PPO and others: who runs where.",
    views: ["post-training"], start: { model: "qwen2.5-7b", gpus: "8", gpu: "h100-sxm-80gb" } },
  diagnose: { name: "Slow run", text: "A log of a run: why it is slower than it should be.", views: ["diagnose"], start: {} },
};
/** The question under whose fields a view asks; views that are not here ask nothing of the form. */
export const PATHS = { plans: "plans", scaling: "scaling", budget: "budget", searches: "plans", deployments: "deployments",
  "post-training": "post-training" };

const TRAINED = ["train", "tune"];
const ANY = [...TRAINED, "serve", "rl"];
const [SERVE, RL] = [["serve"], ["rl"]];
const NO_BUDGET = { not: "budget" };
const HALF = { span: 3 };
const THIRD = { span: 2 };
const WIDE = { span: 6 };

/** Name, label, doors; `span` of six columns, `more`: under More, `list`: suggestions, `words` of choices, `hint` where it is
 * empty, `not` in a view, `only` in one. Names are the service's but `offers` and `most_gpus`, a budget's GPUs. */
const FIELDS = [
  ["model", "Model", ANY, { ...WIDE, list: "models", maxlength: 200 }],
  ["gpus", "GPUs", ANY, { ...THIRD, ...NO_BUDGET }],
  ["gpu", "GPU type", ANY, { span: 4, list: "gpu-types", maxlength: 200, ...NO_BUDGET }],
  ["family", "or a family", TRAINED, { ...HALF, only: "budget", hint: "llama3" }],
  ["most_gpus", "GPUs at most", TRAINED, { ...HALF, only: "budget", kind: "count" }],
  ["offers", "GPU types and prices", TRAINED, { ...WIDE, only: "budget", kind: "list", hint: "h100=2.2 b200=4.5; empty: list prices" }],
  ["peft", "Adapters", ["tune"], { ...HALF, words: { none: "none: all weights" } }],
  ["lora_rank", "LoRA rank", ["tune"], HALF],
  ["global_batch_size", "Global batch", TRAINED, HALF],
  ["seq_length", "Sequence", TRAINED, HALF],
  ["precision", "Precision", TRAINED, HALF],
  ["sort_by", "Goal", TRAINED, { ...HALF, ...NO_BUDGET, words: { step: "fastest step", memory: "least memory", cost: "least cost" } }],
  ["tokens", "Tokens", TRAINED, { ...THIRD, hint: "300B" }],
  ["days", "Days", TRAINED, { ...THIRD, kind: "measure", hint: "60" }],
  ["money", "Budget", TRAINED, { ...THIRD, hint: "3M" }],
  ["software", "Software", TRAINED, HALF],
  ["price", "Price, GPU hour", TRAINED, { ...HALF, ...NO_BUDGET, hint: "none" }],
  ["isl", "Tokens in", SERVE, HALF], ["osl", "Tokens out", SERVE, HALF],
  ["ttft", "TTFT at most", SERVE, { ...HALF, hint: "none, like 2s" }], ["tpot", "TPOT at most", SERVE, { ...HALF, hint: "none, like 50ms" }],
  ["rate", "Requests/s", SERVE, { ...HALF, hint: "full queue" }], ["price", "Price, GPU hour", SERVE, { ...HALF, hint: "none" }],
  ["engine", "Engine", SERVE, HALF],
  ["goal", "Goal", SERVE, { ...HALF, words: { throughput: "most tokens/s", ttft: "least TTFT", tpot: "least TPOT", gpus: "fewest GPUs", cost: "least cost" } }],
  ["algorithm", "Algorithm", RL, HALF], ["framework", "Framework", RL, HALF],
  ["prompts", "Prompts a step", RL, HALF], ["group_size", "Responses of each", RL, HALF],
  ["response_length", "Response, mean", RL, { ...HALF, hint: "tokens" }], ["max_response_length", "Response, most", RL, { ...HALF, hint: "tokens" }],
  ["fit_chance", "Chance to fit, least", [...TRAINED, "rl"], { ...HALF, more: true, percent: true }],
  ["memory_margin", "Memory margin", TRAINED, { ...HALF, more: true, hint: "0" }],
  ["dispatcher", "Dispatcher", TRAINED, { ...HALF, more: true }],
  ["cuda_graphs", "CUDA graphs", TRAINED, { ...HALF, more: true, free: true }],
  ["moe_imbalance", "Expert imbalance", TRAINED, { ...HALF, more: true, hint: "as real routing" }],
  ["ep_overlap", "EP overlap", TRAINED, { ...HALF, more: true }],
  ["grad_reduce_dtype", "Gradients", TRAINED, { ...HALF, more: true }],
  ["gpus_per_node", "GPUs per node", [...TRAINED, "serve"], { ...HALF, more: true }],
  ["exp_avg_dtype", "First moment", TRAINED, { ...HALF, more: true }],
  ["exp_avg_sq_dtype", "Second moment", TRAINED, { ...HALF, more: true }],
  ["fix", "Only plans with", TRAINED, { ...WIDE, more: true, hint: "tp=8 pp=16" }],
  ["max", "At most", TRAINED, { ...WIDE, more: true, hint: "tp=8 mbs=4" }],
  ["exclude", "Without", TRAINED, { ...WIDE, more: true, hint: "vpp=24" }],
  ["top", "Plans to show", TRAINED, { ...HALF, more: true, ...NO_BUDGET }],
  ["isl_stddev", "Stddev in", SERVE, { ...HALF, more: true }], ["osl_stddev", "Stddev out", SERVE, { ...HALF, more: true }],
  ["ttft_p99", "TTFT p99 at most", SERVE, { ...HALF, more: true, hint: "none, like 4s" }],
  ["tpot_p99", "TPOT p99 at most", SERVE, { ...HALF, more: true, hint: "none, like 80ms" }],
  ["prefix_hit", "Prefix hits, share", SERVE, { ...HALF, more: true }], ["imbalance", "Expert imbalance", SERVE, { ...HALF, more: true }],
  ["draft_tokens", "Draft tokens", SERVE, { ...HALF, more: true }], ["acceptance", "Drafts accepted", SERVE, { ...HALF, more: true, hint: "0.8" }],
  ["minibatch", "Samples an update", RL, { ...HALF, more: true, hint: "all of the step" }], ["prompt_length", "Prompt, mean", RL, { ...HALF, more: true, hint: "tokens" }],
  ["tokens_per_gpu", "Tokens a micro-batch", RL, { ...HALF, more: true }], ["staleness", "Steps ahead at most", RL, { ...HALF, more: true }],
  ["turns", "Turns of a sample", RL, { ...HALF, more: true }], ["tool_time", "Seconds of a tool", RL, { ...HALF, more: true, hint: "mean" }],
  ["tool_tokens", "Tokens a tool adds", RL, { ...HALF, more: true }], ["sandboxes", "Tools at once", RL, { ...HALF, more: true, hint: "without limit" }],
  ["host_memory", "Host of a node", RL, { ...HALF, more: true, hint: "2TiB" }],
].map(([name, label, doors, more]) => ({ name, label, doors, ...more }));

const KNOWN = JSON.parse(byId("fields").textContent);

/** What the service knows of a field in the views of a door; the same for all of them but where one takes what another does not. */
function factsOf({ name, doors, kind }) {
  const paths = doors.flatMap((door) => DOORS[door].views).map((view) => PATHS[view]).filter(Boolean);
  const known = paths.map((path) => KNOWN[path][name]).find(Boolean);
  return { kind: "text", choices: [], usual: null, help: "", ...known, ...(kind ? { kind } : {}) };
}

/** A field with what it is drawn with: {name, doors, not, only, kind, usual, input, place}. */
function drawn(field) {
  const facts = factsOf(field);
  const id = `f-${field.doors.length > 1 || field.doors[0] === "train" ? "" : `${field.doors[0]}-`}${field.name}`;
  const problem = h("span", { class: "problem", role: "alert", id: `problem-${id.slice(2)}` });
  const usual = facts.usual === null ? null : field.percent ? `${100 * facts.usual}%` : String(facts.usual);
  const options = facts.kind === "switch" ? ["on", "off"] : facts.choices;
  const input = options.length && !field.free
    ? h("select", { id, name: field.name }, h("option", { value: "" }, usual ? (field.words || {})[usual] || usual : "usual"),
      options.filter((choice) => choice !== usual).map((choice) => h("option", { value: choice }, (field.words || {})[choice] || choice)))
    : h("input", { id, name: field.name, list: field.list || (options.length ? `choices-${field.name}` : null), spellcheck: "false", maxlength: field.maxlength || 400,
      inputmode: { count: "numeric", number: "decimal" }[facts.kind] || null, placeholder: field.hint || usual || "usual" });
  const place = h("p", { class: `field span-${field.span}`, title: facts.help || null }, h("label", { for: id }, field.label), input, problem,
    options.length && field.free ? h("datalist", { id: `choices-${field.name}` }, options.map((value) => h("option", { value }))) : null);
  return { ...field, kind: facts.kind, usual, input, problem, place };
}

/** Every field of the form, in its order. */
export const fields = FIELDS.map(drawn);

/** The fields of the body that a question takes; `path`: the last part of its own. */
export const takenBy = (path, question) => Object.fromEntries(Object.entries(question).filter(([name]) => name in KNOWN[path]));

/** Puts the fields into the form. */
export function buildForm() {
  const [first, more] = [byId("first-fields"), byId("more-fields")];
  for (const field of fields) (field.more ? more : first).append(field.place);
  byId("first-fields").querySelector(".field [name=model]").closest(".field").after(byId("paste"));
}
