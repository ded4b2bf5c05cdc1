// Why a run is slower than it should be: the verdict, phases expected and measured, causes with their evidence.

import { h, summaryBox, table } from "./dom.js";
import { count, fixed, seconds } from "./format.js";

const VERDICTS = { healthy: "Healthy.", fast: "Faster than its class.", slow: "Slow.", report_wrong: "The report is wrong.",
  no_promise: "No promise.", not_enough: "Not enough is known." };
const QUIET = ["healthy", "fast", "report_wrong", "not_enough"];

/** Body of a question: what is pasted are files. */
export function diagnosisBody({ log, launch, ...rest }) {
  return { ...rest, files: { ...(log ? { "pasted.log": log } : {}), ...(launch ? { "launch.sh": launch } : {}) } };
}

function phases(answer) {
  if (!answer.phases.some(({ measured_seconds }) => measured_seconds !== null)) return null;
  const figure = (value) => (value === null ? "–" : fixed(value, 3));
  const rows = answer.phases.map((one) => [one.name, figure(one.expected_seconds), figure(one.measured_seconds), figure(one.gap_seconds), one.source]);
  return h("div", { class: "scroll", tabindex: 0 }, table("Phases of the step, seconds", ["phase", "expected", "measured", "gap", "from"],
    [...rows, ["not explained", "", "", figure(answer.unexplained_seconds), ""]], { class: "sources" }));
}

function causeText(cause) {
  const gain = cause.gain_seconds ? `; gain ${seconds(cause.gain_seconds)}` : "";
  return h("li", null, h("strong", null, cause.words), ` (${cause.rule}, ${cause.certainty})`,
    cause.evidence.map(({ file, line, text }) => h("p", { class: "quiet" }, `${file}${line ? `:${line}` : ""}: ${text}`)),
    cause.figures ? h("p", { class: "quiet" }, cause.figures) : null,
    cause.remedy ? h("p", null, `do: ${cause.remedy}${gain}`) : null,
    cause.changes.length ? h("p", null, "in the file: ", cause.changes.map((one) => [h("code", null,
      one.new === null ? `remove ${one.flag}` : [one.flag, ...one.new].join(" ")), " "])) : null);
}

/** The answer to a pasted log. */
export function diagnosisView(answer) {
  const { measured, expected } = answer;
  const step = measured && measured.step_seconds !== null ? `${seconds(measured.step_seconds)} a step` : "";
  const band = expected ? `expected ${seconds(expected.step_seconds)} (${seconds(expected.p5)} to ${seconds(expected.p95)}, ${expected.level})` : "";
  return [
    answer.short ? summaryBox([answer.question.model.name, `${count(answer.question.cluster.num_gpus)} GPUs`, answer.short], band, answer.question.assumed) : null,
    h("p", { class: QUIET.includes(answer.verdict) ? "note" : "note bad", role: "status" }, h("strong", null, VERDICTS[answer.verdict]),
      ` ${[step, answer.why].filter(Boolean).join("; ")}`),
    answer.causes.length ? h("ol", { class: "words causes" }, answer.causes.map(causeText)) : null,
    phases(answer),
    answer.evidence.map((one) => h("p", { class: "quiet" },
      `${one.file} (${[one.kind, ...one.formats].join(", ")}): ${count(one.lines_read)} read, ${count(one.lines_not_understood)} not understood`)),
    answer.verdict === "healthy" ? null : answer.missing.map(({ evidence, rules }) => h("p", { class: "quiet" }, `not looked at: ${rules.join(", ")}; give ${evidence}`)),
  ];
}
