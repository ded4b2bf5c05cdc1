// Numbers and names as a person reads them. Sizes are GiB, times seconds.

/** A number with so many digits behind the point, its halves to the even one: as Python, and so the command line, rounds. */
export function fixed(value, digits) {
  const size = Math.abs(value);
  let text = size.toFixed(digits);
  const [, exact] = size.toFixed(100).split(".");
  if (/^50*$/.test(exact.slice(digits)) && text.at(-1) % 2) text = `${text.slice(0, -1)}${text.at(-1) - 1}`;
  const [whole, rest] = text.split(".");
  return `${value < 0 ? "-" : ""}${whole.replace(/\B(?=(\d{3})+$)/g, ",")}${rest ? `.${rest}` : ""}`;
}

export const count = (value) => fixed(value, 0);
export const gib = (value) => fixed(value, 1);
export const percent = (value, digits = 0) => `${fixed(100 * value, digits)} %`;

/** A chance as `chance_text` of specs/errors.py has it: never rounded up, whole percents to 99 %, tenths above. */
export function chance(value) {
  if (value >= 0.9999) return "100 %";
  const tenths = Math.floor(value * 1000 + 1e-9);
  return `${tenths <= 990 ? Math.floor(tenths / 10) : tenths / 10} %`;
}

/** Seconds with three significant digits. */
export function seconds(value) {
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${fixed(value * 1e6, value < 1e-4 ? 1 : 0)} µs`;
  if (value < 1) return `${fixed(value * 1e3, value < 0.1 ? 1 : 0)} ms`;
  return `${plainSeconds(value)} s`;
}

/** As `seconds` without the unit, for columns of seconds. */
export const plainSeconds = (value) => fixed(value, value < 100 ? 3 : 1);

/** 174.6 B, 1.2 M. */
export function large(value) {
  for (const [size, name] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (value >= size) return `${fixed(value / size, 1)} ${name}`;
  }
  return fixed(value, 0);
}

/** Days as a table shows them. */
export const days = (value) => fixed(value, value < 10 ? 2 : 1);

/** Money with three digits, as `money_text` of planning/money.py has it: $2.99M, 420k EUR, 3.50. */
export function money(value, currency = "") {
  const [factor, suffix] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([size]) => Math.abs(value) >= 0.9995 * size) || [1, ""];
  const amount = value / factor;
  const places = Math.max(0, 2 - Math.floor(Math.log10(Math.max(Math.abs(amount), 1e-9)) + 1e-9));
  const text = `${fixed(amount, Math.min(places, 6))}${suffix}`;
  const sign = { USD: "$", EUR: "€", GBP: "£" }[currency];
  return sign ? `${sign}${text}` : currency ? `${text} ${currency}` : text;
}

/** "tp=8,pp=4" as words that may break over lines. */
export const planWords = (short) => short.split(",");

const NAMES = {
  gemm: "GEMM",
  grouped_gemm: "grouped GEMM",
  tp_communication: "TP communication",
  cp_communication: "CP communication",
  expert_exchange: "expert dispatch and combine",
  fsdp: "FSDP gathers",
  p2p: "pipeline sends",
  nccl: "NCCL buffers",
  cuda_context: "CUDA context",
  allocator: "allocator",
  mlp_inside: "inside the MLP",
  mlp_backward: "MLP backward",
  optimizer: "optimizer",
  host_floor: "waiting for the host",
  straggler: "stragglers",
};

/** `pipeline_bubble_seconds` as "pipeline bubble". */
export function partName(key) {
  const plain = key.replace(/_(seconds|bytes)$/, "");
  return NAMES[plain] || plain.replaceAll("_", " ");
}

/** Kinds of time, in the order and colours of the charts. */
export function timeKind(key) {
  if (key === "pipeline_bubble_seconds" || key === "straggler_seconds" || /^(host_floor|step_launch)_/.test(key)) return "idle";
  if (key === "optimizer_seconds") return "optimizer";
  if (/communication|exchange|gradient_reduction|parameter_gather|p2p|embedding_gradient|all_to_all|fsdp|offload/.test(key)) {
    return "communication";
  }
  return "compute";
}

/** Kinds of memory, from the bottom of a bar to its top. */
export const MEMORY_KINDS = ["weights", "gradients", "optimizer", "activations", "temporary"];
const TEMPORARY = new Set([
  "loss", "output_layer_backward", "mlp_backward", "attention_backward", "optimizer_step_bytes", "workspace_bytes",
  "dummy_weight_gradients", "fsdp_unit_bytes",
]);

export function memoryKind(key) {
  if (key === "weight_bytes") return "weights";
  if (key === "gradient_bytes") return "gradients";
  if (key === "optimizer_bytes") return "optimizer";
  return TEMPORARY.has(key) ? "temporary" : "activations";
}

/** GiB by kind from a breakdown. */
export function byKind(breakdown) {
  const found = Object.fromEntries(MEMORY_KINDS.map((kind) => [kind, 0]));
  for (const [key, value] of Object.entries(breakdown)) found[memoryKind(key)] += value;
  return found;
}

/** Round marks from 0 or `low` to `high`, about `wanted` of them. */
export function marks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw) || power;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) {
    found.push(Number(value.toPrecision(12)));
  }
  return found;
}

/** A mark's text: no more digits than marks differ in. */
export const markText = (value) => value >= 1e4 ? large(value).replace(".0 ", " ") : String(Number(value.toPrecision(4)));
